package store

import (
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// statements are the relay's SQL for its tables.
//
// Each is a template. Go puts together what is the same for every store, or differs between two statements. What
// depends on the options is a {name}; newStatements has the text of each name, and fills all of them in at once.
type statements struct {
	findDue, findDueAfter   string
	findKeys, findKeysAfter string
	findRuns, nextDue       string
	findNewest              string
	lastID, locker          string
	readRows, readRowsBare  string
	readRange               string
	readRangeBare, pieces   string
	// Deletes move published rows to the history, if there is one; rows that were not published are dropped.
	delete, deleteNear      string
	drop, dropNear          string
	retry, deadLetter, late string
	lockFree, leftover      string
	retention, waiting      string
	report, unreport        string
}

// sameRow joins arguments to their rows. It uses BETWEEN, because for equal columns Postgres may choose a merge join
// over a whole index if the table was empty at the last ANALYZE.
const sameRow = `r.id BETWEEN s.id AND s.id AND r.message_id BETWEEN s.message_id AND s.message_id`

// NotBlocked is the condition that excludes keys with a dead letter (Options.Block). {dead} stands for the
// table. OFFSET 0 keeps Postgres 18 from hashing the whole dead-letter table, which it does even with enable_seqscan
// off.
const NotBlocked = `NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.ordering_key = r.ordering_key OFFSET 0)`

// isReady selects rows that may leave now. In each statement with this condition, $1 is the greatest id of rows without
// a time.
const isReady = `coalesce((r.available_at <= statement_timestamp() OR r.available_at IS NULL AND r.id <= $1)
  AND r.schema_version <= {version} AND {unblocked}, false)`

// IsSuperseded is the condition for rows r with a newer row of the same coalesce key, ordering key, exchange and
// routing key, even if that is not ready. {outbox} stands for the table. Usually it reads one entry of the index; the
// row comparisons exclude all other indexes. Of newer rows to other places it reads only some, so that they cost
// little: a row that seems to be the newest is published. Names above 255 bytes can never be published, so they are not
// read: Postgres compares the sizes of two texts first, unless a collation treats different texts as equal.
const IsSuperseded = `CASE WHEN r.coalesce_key IS NULL OR pg_catalog.octet_length(r.routing_key::text) > 255
         OR pg_catalog.octet_length(r.exchange::text) > 255 THEN false
       WHEN r.ordering_key IS NULL THEN EXISTS (
         SELECT FROM (SELECT n.exchange, n.routing_key FROM {outbox} n
         WHERE n.ordering_key IS NULL AND n.coalesce_key IS NOT NULL
           AND (n.coalesce_key, n.id) > (r.coalesce_key, r.id)
           AND (n.coalesce_key, n.id) <= (r.coalesce_key, 9223372036854775807)
         ORDER BY n.ordering_key, n.coalesce_key, n.id LIMIT 100) n` + samePlace + `)
       ELSE EXISTS (
         SELECT FROM (SELECT n.exchange, n.routing_key FROM {outbox} n
         WHERE n.coalesce_key IS NOT NULL
           AND (n.ordering_key, n.coalesce_key, n.id) > (r.ordering_key, r.coalesce_key, r.id)
           AND (n.ordering_key, n.coalesce_key, n.id) <= (r.ordering_key, r.coalesce_key, 9223372036854775807)
         ORDER BY n.ordering_key, n.coalesce_key, n.id LIMIT 100) n` + samePlace + `) END`

const samePlace = `
         WHERE n.routing_key = r.routing_key COLLATE pg_catalog."C"
           AND n.exchange IS NOT DISTINCT FROM r.exchange COLLATE pg_catalog."C"`

// findDueSQL finds due rows up to a time. After is empty, or the condition for those after a place.
func findDueSQL(after string) string {
	return `
SELECT r.id, r.message_id, r.ordering_key, CASE WHEN r.ordering_key IS NULL THEN {row_size} ELSE 0 END,
       true, r.available_at, false, statement_timestamp()
FROM {outbox} r
WHERE r.available_at <= least($2, statement_timestamp())` + after + ` AND r.schema_version <= {version}{and_of_shard}
ORDER BY r.available_at, r.id LIMIT $1`
}

// afterPlace is the condition for the rows after a place in the order of findDueSQL.
const afterPlace = ` AND (r.available_at, r.id) > ($3, $4)`

// Rows without a time, between two ids.
const findNewestSQL = `
SELECT r.id, r.message_id, r.ordering_key, {row_size}, true, r.available_at, false FROM {outbox} r
WHERE r.id >= $1 AND r.id <= $2 AND r.available_at IS NULL AND r.schema_version <= {version}{and_of_shard}
ORDER BY r.id LIMIT $3`

// findKeysSQL finds the first rows of each key, oldest first. Compare is >= or >, for the first key and for those after
// it. The recursion skips from key to key, so the cost depends on the number of keys, not of rows. Keys of other shards
// are read too, and filtered afterwards.
func findKeysSQL(compare string) string {
	return `
WITH RECURSIVE heads AS (
  (SELECT r.ordering_key, r.id FROM {outbox} r WHERE r.ordering_key ` + compare + ` $2
   ORDER BY r.ordering_key, r.id LIMIT 1)
  UNION ALL
  SELECT n.ordering_key, n.id FROM heads h CROSS JOIN LATERAL (SELECT r.ordering_key, r.id FROM {outbox} r
    WHERE r.ordering_key > h.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) n)
SELECT r.id, r.message_id, h.ordering_key, {row_size}, ` + isReady + `, r.available_at, ` + IsSuperseded + `
FROM (SELECT * FROM heads{where_of_shard} LIMIT $3) h CROSS JOIN LATERAL (
  SELECT r.* FROM {outbox} r
  WHERE r.ordering_key >= h.ordering_key AND r.ordering_key <= h.ordering_key
    AND (r.ordering_key, r.id) >= (h.ordering_key, h.id)
  ORDER BY r.ordering_key, r.id LIMIT $4) r
ORDER BY h.ordering_key, r.id`
}

// The first rows of some keys, oldest first. A range instead of equality keeps Postgres from using the primary key for
// the order.
const findRunsSQL = `
SELECT r.id, r.message_id, k.key, {row_size}, ` + isReady + `, r.available_at, ` + IsSuperseded + `
FROM pg_catalog.unnest($2::text[]) WITH ORDINALITY k(key, nth) JOIN LATERAL (
  SELECT r.* FROM {outbox} r WHERE r.ordering_key >= k.key AND r.ordering_key <= k.key
  ORDER BY r.ordering_key, r.id LIMIT $3) r ON true{and_of_shard}
ORDER BY k.nth, r.id`

// theEnd are columns after those of a message. The server reads the position after the snapshot, so all rows that it
// shows committed before. A row that a session has locked has an xmax, also afterwards if that did not change the row.
const theEnd = `, ` + IsSuperseded + `, statement_timestamp(), (SELECT ` + insertPosition + `), body.size,
       r.xmax <> 0`

// readRowsSQL reads rows with some ids that may leave. It locks them for a moment, so that it leaves out those of other
// sessions: such a session may cancel a message.
func readRowsSQL(columns, from, fits string) string {
	return `
SELECT ` + columns + theEnd + ` FROM {outbox}` + from + `
WHERE r.id = ANY ($4) AND ` + isReady + `{and_of_shard} AND ` + fits + `
ORDER BY r.id FOR UPDATE OF r SKIP LOCKED`
}

// readRangeSQL reads rows without a key and without a time, except those in memory ($5).
func readRangeSQL(columns, from, fits string) string {
	return `
SELECT ` + columns + theEnd + ` FROM {outbox}` + from + `
WHERE r.id >= $4 AND r.id <= $1 AND r.ordering_key IS NULL AND r.available_at IS NULL
  AND r.schema_version <= {version}{and_of_shard} AND NOT r.id = ANY ($5::bigint[]) AND ` + fits + `
ORDER BY r.id LIMIT $6`
}

// anyBody and anySize stand for the sizes, for columns without bodies.
const (
	anyBody = ` r CROSS JOIN (SELECT 0::bigint AS size) body`
	anySize = `$2::bigint + $3::bigint IS NOT NULL`
)

// The body of a locked row, in pieces: a row of a result is in memory twice while it is read. The server reads and
// decompresses the body once.
const piecesSQL = `
SELECT pg_catalog.octet_length(b.body), pg_catalog.substring(b.body, n, 1048576)
FROM (SELECT coalesce(pg_catalog.byteacat(r.payload_bytes, ''::bytea), pg_catalog.textsend(r.payload::text)) AS body
      FROM {outbox} r WHERE r.id = $1 OFFSET 0) b,
     pg_catalog.generate_series(1, pg_catalog.octet_length(b.body), 1048576) n`

// nextDueSQL limits the result to a day: a time may be infinite.
const nextDueSQL = `
SELECT extract(epoch FROM greatest(
         least(coalesce(pg_catalog.min(r.available_at), 'infinity'), statement_timestamp() + interval '1 day'),
         statement_timestamp()) - statement_timestamp())::float8
FROM {outbox} r`

// isAwaited reports whether a caller of outbox_await holds the lock. Relays share it for one statement, so they do not
// see each other.
const isAwaited = `NOT pg_catalog.pg_try_advisory_xact_lock_shared(
         pg_catalog.hashtextextended('cdc-relay await', {outbox_literal}::regclass::oid::bigint))`

// dropSQL compares id and message_id, because ids return after TRUNCATE … RESTART IDENTITY. It returns places in the
// batch. The snapshot tells rows that are gone from rows that are not visible yet: the statement saw exactly the
// snapshot.
const (
	dropSQL = `
WITH deleted AS (` + deleteRows + `)` + deletedRows
	// moveSQL is the same with a history.
	moveSQL = `
WITH deleted AS (` + deleteRows + `, {kept_of_row}), kept AS (` + toHistory + `)` + deletedRows

	deleteRows = `
  DELETE FROM {outbox} r USING unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY s(id, message_id, nth)
  WHERE ` + sameRow + ` RETURNING s.nth`
	deletedRows = `
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}'), ` + isAwaited + ` FROM deleted`
)

// With a history, a delete moves the rows there.
const (
	toHistory = `
INSERT INTO {published} ({kept}, published_at)
SELECT {kept}, clock_timestamp() FROM deleted`
)

// settledRows are the arguments of a settlement. available_at is the fence: it is the time when the row was published,
// and a row that changed since is left alone.
const settledRows = `unnest($1::bigint[], $2::uuid[], $3::timestamptz[], $4::boolean[], $5::interval[],
         $6::text[], $7::text[], $8::integer[])
  WITH ORDINALITY s(id, message_id, available_at, possible_duplicate, delay, detail, reason, rejected, nth)`

const fenced = sameRow + ` AND r.available_at IS NOT DISTINCT FROM s.available_at`

// attempts stops at its greatest value, because an application may have set it.
const retrySQL = `
WITH changed AS (
  UPDATE {outbox} r SET attempts = least(r.attempts, 2147483647 - s.rejected) + s.rejected,
         last_error = coalesce(nullif(s.detail, ''), r.last_error),
         available_at = clock_timestamp() + s.delay,
         possible_duplicate = s.possible_duplicate OR r.possible_duplicate IS TRUE
  FROM ` + settledRows + ` WHERE ` + fenced + ` RETURNING s.nth)
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}'), ` + isAwaited + ` FROM changed`

// An existing dead letter stays; somebody may have copied its row back. Without ON CONFLICT, a unique key that somebody
// added makes the statement fail instead of losing the message.
const deadLetterSQL = `
WITH moved AS (
  DELETE FROM {outbox} r USING ` + settledRows + ` WHERE ` + fenced + `
  RETURNING {copied_of_row}{extra_columns}, s.possible_duplicate OR r.possible_duplicate IS TRUE AS possible_duplicate,
            least(r.attempts, 2147483647 - s.rejected) + s.rejected AS attempts,
            CASE WHEN s.reason = 'expired' THEN coalesce(r.last_error, s.detail) ELSE s.detail END AS last_error,
            s.reason AS failure_reason, s.nth),
kept AS (
  INSERT INTO {dead} ({copied}{extra_names}, possible_duplicate, attempts, last_error, failure_reason, dead_at)
  SELECT {copied}{extra_values}, possible_duplicate, attempts, last_error, failure_reason, clock_timestamp()
  FROM moved m
  WHERE NOT EXISTS (SELECT FROM {dead} d WHERE d.id = m.id AND d.message_id = m.message_id))
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}'), ` + isAwaited + ` FROM moved`

// Locks the rows of a batch that no other session has locked. It returns their places in the batch.
const lockFreeSQL = `
WITH free AS (
  SELECT s.nth
  FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY s(id, message_id, nth)
  JOIN {outbox} r ON ` + sameRow + ` FOR UPDATE OF r SKIP LOCKED)
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}') FROM free`

// ofShard returns the condition for the rows of a shard. It is the row filter of the publication, so that stream and
// sweeps take the same rows. Postgres estimates that a coalesce matches half of the rows, and that an equality with a
// hash matches 1 in 200, which is worse.
func ofShard(lead string, shard outbox.Shard, row string) string {
	if shard.Whole() {
		return ""
	}
	return lead + "coalesce(" + shard.Condition(row) + ", false)"
}

// newStatements returns the statements of a store.
func newStatements(options Options) statements {
	unblocked, keyless := "true", "true"
	if options.Block {
		dead := options.Table.DeadLetter().SQL()
		unblocked, keyless = strings.ReplaceAll(NotBlocked, "{dead}", dead), "d.ordering_key IS NULL"
	}
	fill := strings.NewReplacer(
		"{outbox}", options.Table.SQL(),
		"{outbox_literal}", outbox.QuoteLiteral(options.Table.SQL()),
		"{dead}", options.Table.DeadLetter().SQL(),
		"{published}", options.Table.Published().SQL(),
		"{relay}", migrations.RelayTable(options.Table).SQL(),
		"{version}", strconv.Itoa(outbox.SchemaVersion),
		"{swept_columns}", sweptColumns(options.HeaderColumns),
		"{bare_columns}", bareColumns(options.HeaderColumns),
		"{row_size}", rowSize(options.HeaderColumns),
		"{copied}", schema.List(schema.Copied(), ""),
		"{copied_of_row}", schema.List(schema.Copied(), "r."),
		"{kept}", schema.List(schema.Kept(), ""),
		"{kept_of_row}", schema.List(schema.Kept(), "r."),
		"{unblocked}", unblocked,
		"{keyless}", keyless,
		// These are empty for the whole table.
		"{and_of_shard}", ofShard(" AND ", options.Shard, "r."),
		"{where_of_shard}", ofShard(" WHERE ", options.Shard, ""),
	).Replace
	all := statements{
		findDue:       fill(findDueSQL("")),
		findDueAfter:  fill(findDueSQL(afterPlace)),
		findKeys:      fill(findKeysSQL(">=")),
		findKeysAfter: fill(findKeysSQL(">")),
		findRuns:      fill(findRunsSQL),
		nextDue:       fill(nextDueSQL),
		findNewest:    fill(findNewestSQL),
		lastID:        fill(lastIDSQL),
		report:        fill(reportSQL),
		unreport:      fill(`DELETE FROM {relay} r WHERE r.id = $1::text`),
		locker:        fill(lockerSQL),

		readRows:      fill(readRowsSQL("{swept_columns}", withSize, fits())),
		readRowsBare:  fill(readRowsSQL("{bare_columns}", anyBody, anySize)),
		readRange:     fill(readRangeSQL("{swept_columns}", withSize, fits())),
		readRangeBare: fill(readRangeSQL("{bare_columns}", anyBody, anySize)),
		pieces:        fill(piecesSQL),

		delete:     fill(dropSQL),
		deleteNear: fill(dropNearSQL),
		drop:       fill(dropSQL),
		dropNear:   fill(dropNearSQL),

		retry:      fill(retrySQL),
		deadLetter: fill(deadLetterSQL),
		late:       fill(lateSQL),
		retention:  fill(retentionSQL),
		lockFree:   fill(lockFreeSQL),
		leftover:   fill(leftoverSQL),
		waiting:    fill(waitingSQL),
	}
	if options.KeepPublished > 0 {
		all.delete, all.deleteNear = fill(moveSQL), fill(moveNearSQL)
	}
	return all
}
