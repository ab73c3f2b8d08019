package store

import (
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// statements are the relay's SQL for its tables.
//
// Each is a template. Go puts together what is the same for every store, or differs between two statements. What
// depends on the options is a {name}; newStatements has the text of each name, and fills all of them in at once.
type statements struct {
	findDue, findDueAfter   string
	findBacklog             string
	findKeys, findKeysAfter string
	findRuns, nextDue       string
	lastID, locker          string
	// Of claims.
	lockTable, lock, lockBare string
	lockPlain                 string
	bodySize, read, pieces    string
	release, postpone         string
	// Deletes move published rows to the history, if there is one; rows that were not published are dropped.
	delete, deleteNear, deleteLocked string
	drop, dropNear, dropLocked       string
	retry, deadLetter, late          string
	lockFree, leftover               string
	retention                        string
}

// sameRow joins arguments to their rows. It uses BETWEEN, because for equal columns Postgres may choose a merge join
// over a whole index if the table was empty at the last ANALYZE.
const sameRow = `r.id BETWEEN s.id AND s.id AND r.message_id BETWEEN s.message_id AND s.message_id`

// NotBlocked is the condition that excludes keys with a dead letter (Options.Block). {dead} stands for the
// table. OFFSET 0 keeps Postgres 18 from hashing the whole dead-letter table, which it does even with enable_seqscan
// off.
const NotBlocked = `NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.ordering_key = r.ordering_key OFFSET 0)`

// isFresh selects rows without a time, of a minimum age and up to an id. In each statement with this condition, $1 and
// $2 are the UpTo and Age of an outbox.Fresh.
const isFresh = `r.available_at IS NULL AND r.id <= $1
  AND ($2::interval = '0' OR r.created_at <= statement_timestamp() - $2::interval)`

// isReady selects rows that may leave now.
const isReady = `coalesce((r.available_at <= statement_timestamp() OR (` + isFresh + `))
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
       true, r.available_at, false, false, statement_timestamp()
FROM {outbox} r
WHERE r.available_at <= least($2, statement_timestamp())` + after + ` AND r.schema_version <= {version}{and_of_shard}
ORDER BY r.available_at, r.id LIMIT $1`
}

// afterPlace is the condition for the rows after a place in the order of findDueSQL.
const afterPlace = ` AND (r.available_at, r.id) > ($3, $4)`

// Rows without a time, between two ids.
const findBacklogSQL = `
SELECT r.id, r.message_id, r.ordering_key, {row_size}, true, r.available_at, false, ` + Traced + ` FROM {outbox} r
WHERE r.id >= $3 AND r.id <= $4 AND ($6 OR r.ordering_key IS NULL)
  AND ` + isFresh + ` AND r.schema_version <= {version}{and_of_shard}
ORDER BY r.id LIMIT $5`

// findKeysSQL finds the first rows of each key, oldest first. Compare is >= or >, for the first key and for those after
// it. The recursion skips from key to key, so the cost depends on the number of keys, not of rows. Keys of other shards
// are read too, and filtered afterwards.
func findKeysSQL(compare string) string {
	return `
WITH RECURSIVE heads AS (
  (SELECT r.ordering_key, r.id FROM {outbox} r WHERE r.ordering_key ` + compare + ` $3
   ORDER BY r.ordering_key, r.id LIMIT 1)
  UNION ALL
  SELECT n.ordering_key, n.id FROM heads h CROSS JOIN LATERAL (SELECT r.ordering_key, r.id FROM {outbox} r
    WHERE r.ordering_key > h.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) n)
SELECT r.id, r.message_id, h.ordering_key, {row_size}, ` + isReady + `, r.available_at, ` + IsSuperseded + `, false
FROM (SELECT * FROM heads{where_of_shard} LIMIT $4) h CROSS JOIN LATERAL (
  SELECT r.* FROM {outbox} r
  WHERE r.ordering_key >= h.ordering_key AND r.ordering_key <= h.ordering_key
    AND (r.ordering_key, r.id) >= (h.ordering_key, h.id)
  ORDER BY r.ordering_key, r.id LIMIT $5) r
ORDER BY h.ordering_key, r.id`
}

// The first rows of some keys, oldest first. A range instead of equality keeps Postgres from using the primary key for
// the order.
const findRunsSQL = `
SELECT r.id, r.message_id, k.key, {row_size}, ` + isReady + `, r.available_at, ` + IsSuperseded + `, false
FROM pg_catalog.unnest($3::text[]) WITH ORDINALITY k(key, nth) JOIN LATERAL (
  SELECT r.* FROM {outbox} r WHERE r.ordering_key >= k.key AND r.ordering_key <= k.key
  ORDER BY r.ordering_key, r.id LIMIT $4) r ON true{and_of_shard}
ORDER BY k.nth, r.id`

// A claim will delete rows. Without this lock, a claim and an index build could wait for each other.
const lockTableSQL = `LOCK TABLE {outbox} IN ROW EXCLUSIVE MODE`

// Traced is the condition for rows r that a session has locked and not deleted: it may have published them. If it locks
// and then changes a row, as a claim does when it releases it, xmax equals xmin.
const Traced = `r.xmax <> 0 AND r.xmax <> r.xmin`

// lockSQL locks the rows of a claim, unless they have changed since they were found. Columns are those of a message;
// rows that do not fit stay unlocked.
func lockSQL(columns, fits string) string {
	return `
SELECT ` + columns + `, r.tableoid, r.ctid, ` + Traced + `, ` + IsSuperseded + ` FROM {outbox} r
WHERE r.id = ANY ($3) AND CASE WHEN ` + isReady + `{and_of_shard} THEN ` + fits + ` ELSE false END
ORDER BY r.id FOR UPDATE SKIP LOCKED`
}

// lockPlainSQL finds and locks rows without a key and without a time, except those in memory ($6). It skips rows that
// are larger than $7, that do not fit, or that another session may have locked, and notes the first of these for
// positionSQL. CASE keeps the order of the conditions.
func lockPlainSQL(fits string) string {
	const skips = `pg_catalog.set_config('cdc_relay.skipped',
         coalesce(nullif(pg_catalog.current_setting('cdc_relay.skipped', true), ''), r.id::text), true) IS NULL`
	return `
SELECT {claimed_columns}, r.tableoid, r.ctid, false, ` + IsSuperseded + ` FROM {outbox} r
WHERE r.id >= $3 AND r.id <= $4 AND r.ordering_key IS NULL AND CASE
  WHEN NOT (` + isFresh + ` AND r.schema_version <= {version}{and_of_shard}) THEN false
  WHEN r.id IN (SELECT pg_catalog.unnest($6::bigint[])) THEN false
  WHEN ` + Traced + ` OR {row_size} > $7::bigint THEN ` + skips + `
  WHEN ` + fits + ` THEN true
  ELSE ` + skips + ` END
ORDER BY r.id LIMIT $5 FOR UPDATE SKIP LOCKED`
}

// One locked row without its body, the size of that, and its pieces. A row of a result is in memory twice while it is
// read, so a large body comes as many rows. The server reads and decompresses it once.
const (
	readSQL   = `SELECT {columns_without_body} FROM {outbox} r WHERE r.tableoid = $1 AND r.ctid = $2`
	piecesSQL = `
SELECT pg_catalog.octet_length(b.body), pg_catalog.substring(b.body, n, 1048576)
FROM (SELECT coalesce(pg_catalog.byteacat(r.payload_bytes, ''::bytea), pg_catalog.textsend(r.payload::text)) AS body
      FROM {outbox} r WHERE r.tableoid = $1 AND r.ctid = $2 OFFSET 0) b,
     pg_catalog.generate_series(1, pg_catalog.octet_length(b.body), 1048576) n`
	bodySizeSQL = `
SELECT coalesce(CASE WHEN pg_catalog.pg_column_compression(r.payload) IS NULL THEN pg_catalog.pg_column_size(r.payload)
         ELSE pg_catalog.octet_length(r.payload::text) END, 0)::bigint
       + coalesce(pg_catalog.octet_length(r.payload_bytes), 0)
FROM {outbox} r WHERE r.tableoid = $1 AND r.ctid = $2`
)

// atPlaces selects rows of one table or partition by ctid. It costs Postgres 40 % less than their ids. Only locked rows
// stay at their places until the end of the transaction.
const atPlaces = `r.ctid = ANY ($1::tid[]) AND r.tableoid = $2::oid`

const dropLockedSQL = `DELETE FROM {outbox} r WHERE ` + atPlaces

// The same with a history.
const moveLockedSQL = `
WITH deleted AS (DELETE FROM {outbox} r WHERE ` + atPlaces + ` RETURNING {kept_of_row})` + toHistory

// Rows that a claim gives back, with their mark. The update also removes the trace of the lock.
const releaseSQL = `
WITH changed AS (
  UPDATE {outbox} r SET possible_duplicate = s.possible_duplicate
  FROM ` + settledRows + ` WHERE ` + sameRow + ` RETURNING s.nth)
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}'), ` + isAwaited + ` FROM changed`

// Rows of a claim without an answer.
const postponeSQL = `
UPDATE {outbox} r SET available_at = clock_timestamp() + $2::interval, possible_duplicate = true
WHERE r.id = ANY ($1) RETURNING r.id, r.available_at`

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

// tracedByOthers: another relay may have published the row since this one did. Its claim has left a trace, or the mark.
const tracedByOthers = Traced + ` AND r.xmax <> pg_current_xact_id()::xid OR r.possible_duplicate IS TRUE`

// attempts stops at its greatest value, because an application may have set it.
const retrySQL = `
WITH changed AS (
  UPDATE {outbox} r SET attempts = least(r.attempts, 2147483647 - s.rejected) + s.rejected,
         last_error = coalesce(nullif(s.detail, ''), r.last_error),
         available_at = clock_timestamp() + s.delay,
         possible_duplicate = s.possible_duplicate OR (` + tracedByOthers + `)
  FROM ` + settledRows + ` WHERE ` + fenced + ` RETURNING s.nth)
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}'), ` + isAwaited + ` FROM changed`

// An existing dead letter stays; somebody may have copied its row back. Without ON CONFLICT, a unique key that somebody
// added makes the statement fail instead of losing the message. The rows are locked first, because a delete returns its
// own xmax.
const deadLetterSQL = `
WITH locked AS (
  SELECT s.*, ` + tracedByOthers + ` AS traced
  FROM ` + settledRows + ` JOIN {outbox} r ON ` + fenced + ` FOR UPDATE OF r),
moved AS (
  DELETE FROM {outbox} r USING locked s WHERE ` + sameRow + `
  RETURNING {copied_of_row}{extra_columns}, s.possible_duplicate OR s.traced AS possible_duplicate,
            least(r.attempts, 2147483647 - s.rejected) + s.rejected AS attempts,
            CASE WHEN s.reason = 'expired' THEN coalesce(r.last_error, s.detail) ELSE s.detail END AS last_error,
            s.reason AS failure_reason, s.nth),
kept AS (
  INSERT INTO {dead} ({copied}{extra_names}, possible_duplicate, attempts, last_error, failure_reason, dead_at)
  SELECT {copied}{extra_values}, possible_duplicate, attempts, last_error, failure_reason, clock_timestamp()
  FROM moved m
  WHERE NOT EXISTS (SELECT FROM {dead} d WHERE d.id = m.id AND d.message_id = m.message_id))
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}'), ` + isAwaited + ` FROM moved`

// Locks the rows of a batch that no other session has locked. It returns their places in the batch, and the trace of an
// earlier lock.
const lockFreeSQL = `
WITH free AS (
  SELECT s.nth, ` + Traced + ` AS traced
  FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY s(id, message_id, nth)
  JOIN {outbox} r ON ` + sameRow + ` FOR UPDATE OF r SKIP LOCKED)
SELECT pg_current_snapshot()::text, coalesce(pg_catalog.array_agg(nth), '{}'),
       coalesce(pg_catalog.array_agg(traced), '{}')
FROM free`

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
		"{version}", strconv.Itoa(outbox.SchemaVersion),
		"{claimed_columns}", claimedColumns(options.HeaderColumns),
		"{columns_without_body}", strings.NewReplacer(
			"r.payload,", "CASE WHEN r.payload IS NOT NULL THEN 'null'::json END,",
			"r.payload_bytes,", "CASE WHEN r.payload_bytes IS NOT NULL THEN ''::bytea END,",
		).Replace(claimedColumns(options.HeaderColumns)),
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
		findBacklog:   fill(findBacklogSQL),
		findKeys:      fill(findKeysSQL(">=")),
		findKeysAfter: fill(findKeysSQL(">")),
		findRuns:      fill(findRunsSQL),
		nextDue:       fill(nextDueSQL),
		lastID:        fill(lastIDSQL),
		locker:        fill(lockerSQL),

		lockTable: fill(lockTableSQL),
		lock:      fill(lockSQL("{claimed_columns}", fits())),
		lockBare:  fill(lockSQL("{bare_columns}", "true")),
		lockPlain: fill(lockPlainSQL(fits())),
		bodySize:  fill(bodySizeSQL),
		read:      fill(readSQL),
		pieces:    fill(piecesSQL),
		release:   fill(releaseSQL),
		postpone:  fill(postponeSQL),

		delete:       fill(dropSQL),
		deleteNear:   fill(dropNearSQL),
		deleteLocked: fill(dropLockedSQL),
		drop:         fill(dropSQL),
		dropNear:     fill(dropNearSQL),
		dropLocked:   fill(dropLockedSQL),

		retry:      fill(retrySQL),
		deadLetter: fill(deadLetterSQL),
		late:       fill(lateSQL),
		retention:  fill(retentionSQL),
		lockFree:   fill(lockFreeSQL),
		leftover:   fill(leftoverSQL),
	}
	if options.KeepPublished > 0 {
		all.delete, all.deleteNear, all.deleteLocked = fill(moveSQL), fill(moveNearSQL), fill(moveLockedSQL)
	}
	return all
}
