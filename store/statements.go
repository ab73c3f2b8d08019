package store

import (
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// statements are the relay's SQL with the names of its tables filled in.
type statements struct {
	leftover, keyHeads, keyRows        string
	claimDue, claimUnclaimed           string
	followDue, followUnclaimed         string
	nextDue                            string
	delete, retry, deadLetter, release string
	deleteNear                         string
	lock, visible, moved, retention    string
}

// messageColumns are read in this order by scanMessage. Rows are called r. All columns that a statement needs are
// named: an application may have others, under a name that the statement gives to what it reckons.
const messageColumns = `r.id, r.message_id, r.exchange, r.routing_key, r.ordering_key, r.payload, r.payload_bytes,
       r.headers, r.properties, r.schema_version, r.created_at, r.available_at, r.attempts`

// rowSize is what a row holds of memory when it is read, roughly.
const rowSize = `(coalesce(octet_length(r.payload::text), 0) + coalesce(octet_length(r.payload_bytes), 0)
       + coalesce(pg_column_size(r.headers), 0) * 4 + coalesce(pg_column_size(r.properties), 0) * 4
       + octet_length(r.routing_key) + coalesce(octet_length(r.exchange), 0) + 256)`

// sameRow joins what a statement is given to its row. BETWEEN stands for equality: of equal
// columns Postgres offers a merge, and for that an index without a condition. Where it
// takes the table for empty, since it was when it was analyzed, it reads all of it so.
const sameRow = `r.id BETWEEN s.id AND s.id AND r.message_id BETWEEN s.message_id AND s.message_id`

// firstOfItsKey keeps the order: of the rows of one key only the oldest may leave.
// Rows that wait for a retry or a newer relay count, and hold up their key. Rows are
// compared since id alone would also offer the primary key, and all older rows with it.
const firstOfItsKey = `NOT EXISTS (SELECT 1 FROM {outbox} e
      WHERE e.ordering_key = r.ordering_key AND (e.ordering_key, e.id) < (r.ordering_key, r.id))`

// notBlocked leaves out keys whose dead letter waits for a person (--on-dead-letter
// block). OFFSET 0 keeps Postgres 18 from hashing the whole table of dead letters,
// which it does whatever enable_seqscan says.
const notBlocked = `NOT EXISTS (SELECT 1 FROM {dead} d WHERE d.ordering_key = r.ordering_key OFFSET 0)`

// The leftovers: rows without a key that nobody has claimed, in pages by id.
const leftoverSQL = `
SELECT ` + messageColumns + `, r.possible_duplicate FROM {outbox} r
WHERE r.id > $1 AND r.id <= $3 AND r.available_at IS NULL AND r.ordering_key IS NULL AND r.schema_version <= {version}{and_of_shard}
ORDER BY r.id LIMIT $2`

// A claim takes rows under SKIP LOCKED and sets their lease: {heads}, each the oldest row of its
// key or without one, and with each head the rows that follow it directly in its key, as
// long as they may leave as well. Whoever has locked the head has the key. The rows
// behind it are read without a lock up to the first that may not leave, then locked and looked at
// anew; the first that somebody else holds or has changed ends the run, so that none
// is overtaken. What the limits leave for the runs is shared out among the keys. The constant
// limits tell the planner how few rows there are at each step.
const claimSQL = `
WITH heads AS MATERIALIZED ({heads}
), share AS MATERIALIZED (
  SELECT $1 - count(*) AS rows, least($5 - 1, ceil(($1 - count(*))::numeric / greatest(count(ordering_key), 1)))::bigint AS each
  FROM heads
), behind AS MATERIALIZED (
  SELECT * FROM (
    SELECT h.id AS head, f.id, f.nth, f.row_size
    FROM heads h CROSS JOIN LATERAL (
      SELECT r.id, r.row_size, row_number() OVER next AS nth, bool_and(r.may_leave) OVER next AS may_leave
      FROM (SELECT * FROM (
              SELECT r.ordering_key, r.id FROM {outbox} r
              WHERE r.ordering_key IS NOT NULL AND (r.ordering_key, r.id) > (h.ordering_key, h.id)
              ORDER BY r.ordering_key, r.id LIMIT (SELECT each FROM share)) n LIMIT {longest_run}) n
      CROSS JOIN LATERAL (
        SELECT r.id, r.may_leave, CASE WHEN r.may_leave THEN ` + rowSize + ` END AS row_size
        FROM (SELECT r.id, r.payload, r.payload_bytes, r.headers, r.properties, r.routing_key, r.exchange, r.ordering_key = h.ordering_key AND ` + mayFollow + ` AS may_leave FROM {outbox} r WHERE r.id = n.id LIMIT 1) r) r
      WINDOW next AS (ORDER BY r.id)) f
    WHERE h.ordering_key IS NOT NULL AND f.may_leave
    ORDER BY f.nth, f.id LIMIT (SELECT rows FROM share)) b LIMIT {most_rows}
), locked AS MATERIALIZED (
  SELECT b.head, b.nth, b.row_size, r.id, r.possible_duplicate
  FROM behind b CROSS JOIN LATERAL (
    SELECT r.id, r.possible_duplicate FROM {outbox} r WHERE r.id = b.id AND ` + mayFollow + ` LIMIT 1 FOR UPDATE SKIP LOCKED) r
), picked AS (
  SELECT 0 AS nth, id, possible_duplicate, row_size FROM heads
  UNION ALL
  SELECT nth, id, possible_duplicate, row_size
  FROM (SELECT *, row_number() OVER (PARTITION BY head ORDER BY nth) AS place FROM locked) l WHERE place = nth
), sized AS (
  SELECT id, possible_duplicate, sum(row_size) OVER (ORDER BY nth, id) - row_size AS bytes_before FROM picked
)
UPDATE {outbox} r SET available_at = clock_timestamp() + $3::interval, possible_duplicate = true
FROM sized s WHERE r.id BETWEEN s.id AND s.id AND s.bytes_before < $2
RETURNING ` + messageColumns + `, s.possible_duplicate`

// mayFollow is no condition that an index could be read by.
const mayFollow = `({eligible} AND r.schema_version <= {version}{and_of_shard}) IS TRUE`

// The heads of a class of rows, oldest first. The clock is read in a subquery: as a volatile
// function it could not bound an index scan.
const anyHeads = `
  SELECT r.id, r.ordering_key, r.possible_duplicate, ` + rowSize + ` AS row_size
  FROM {outbox} r
  WHERE {eligible} AND r.schema_version <= {version}{and_of_shard}
    AND (r.ordering_key IS NULL OR ($4 AND ` + firstOfItsKey + ` AND {unblocked}))
  ORDER BY {order} LIMIT $1 FOR UPDATE SKIP LOCKED`

// The heads of some keys. What is read first from a key on may be a row of another one, which
// keeps the primary key from being offered for the order.
const headsOfKeys = `
  SELECT r.id, r.ordering_key, r.possible_duplicate, r.row_size
  FROM unnest($4::text[]) k(key) CROSS JOIN LATERAL (
    SELECT r.id, r.ordering_key FROM {outbox} r WHERE r.ordering_key >= k.key ORDER BY r.ordering_key, r.id LIMIT 1) h
  CROSS JOIN LATERAL (
    SELECT r.id, r.ordering_key, r.possible_duplicate, ` + rowSize + ` AS row_size
    FROM {outbox} r WHERE r.id = h.id AND h.ordering_key = k.key AND ` + mayFollow + ` AND {unblocked}
    LIMIT 1 FOR UPDATE SKIP LOCKED) r
  LIMIT $1`

// nextDueSQL: a time may be infinite either way; a day is far enough.
const nextDueSQL = `
SELECT extract(epoch FROM greatest(least(coalesce(min(r.available_at), 'infinity'), statement_timestamp() + interval '1 day'),
         statement_timestamp()) - statement_timestamp())::float8
FROM {outbox} r`

// The heads: the oldest row of each key, found by skipping from key to key, so
// that the cost follows the keys and not the rows. Other shards' keys are skipped
// likewise, and left out afterwards.
const keyHeadsSQL = `
WITH RECURSIVE heads AS (
  (SELECT r.ordering_key, r.id FROM {outbox} r
   WHERE r.ordering_key >= $1 ORDER BY r.ordering_key, r.id LIMIT 1)
  UNION ALL
  SELECT n.ordering_key, n.id FROM heads h CROSS JOIN LATERAL (
    SELECT r.ordering_key, r.id FROM {outbox} r
    WHERE r.ordering_key > h.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) n
)
SELECT h.ordering_key, r.id, r.message_id, r.available_at IS NULL AND r.schema_version <= {version} AND {unblocked}
FROM (SELECT * FROM heads{where_of_shard} LIMIT $2) h JOIN {outbox} r ON r.id BETWEEN h.id AND h.id ORDER BY h.ordering_key`

// The first rows of some keys, each from its own place on and with whether it may leave and whether its
// payload was within the bytes that may be read at a time ($3).
const keyRowsSQL = `
SELECT r.id, r.message_id, r.exchange, r.routing_key, r.ordering_key,
       CASE WHEN r.bytes_before < $3 THEN r.payload END, CASE WHEN r.bytes_before < $3 THEN r.payload_bytes END,
       CASE WHEN r.bytes_before < $3 THEN r.headers END, r.properties, r.schema_version, r.created_at, r.available_at,
       r.attempts, r.possible_duplicate, r.written_by,
       r.available_at IS NULL AND r.schema_version <= {version} AND {unblocked}, r.bytes_before < $3, r.key_order
FROM (SELECT r.*, sum(r.row_size) OVER (ORDER BY r.nth, r.key_order, r.id) - r.row_size AS bytes_before
      FROM (SELECT r.*, k.key_order, ` + rowSize + ` AS row_size,
                   row_number() OVER (PARTITION BY k.key_order ORDER BY r.id) AS nth
            FROM unnest($1::text[], $4::bigint[]) WITH ORDINALITY k(key, after, key_order) CROSS JOIN LATERAL (
              SELECT ` + messageColumns + `, r.possible_duplicate, r.xmin AS written_by
              FROM {outbox} r WHERE r.ordering_key = k.key AND (r.ordering_key, r.id) > (k.key, k.after)
              ORDER BY r.id LIMIT $2) r) r) r
ORDER BY r.key_order, r.id`

// The delete goes by id and message_id, since ids come again after TRUNCATE …
// RESTART IDENTITY. What is returned are places in the batch. The snapshot tells
// rows that are gone from rows that are not visible yet: the statement could see
// exactly what the snapshot says.
const deleteSQL = `
WITH deleted AS (
  DELETE FROM {outbox} r USING unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY s(id, message_id, nth)
  WHERE ` + sameRow + ` RETURNING s.nth)
SELECT pg_current_snapshot()::text, coalesce(array_agg(nth), '{}') FROM deleted`

// settledRows are the rows of a refusal, fenced by the lease under which they
// were published: a row that somebody else has claimed since is left alone.
const settledRows = `unnest($1::bigint[], $2::uuid[], $3::timestamptz[], $4::boolean[], $5::interval[], $6::text[], $7::text[], $8::integer[])
  WITH ORDINALITY s(id, message_id, lease, possible_duplicate, delay, detail, reason, refused, nth)`

const fenced = sameRow + ` AND r.available_at IS NOT DISTINCT FROM s.lease`

// attempts stops at its greatest value: an application may have set it.
const retrySQL = `
WITH changed AS (
  UPDATE {outbox} r SET attempts = least(r.attempts, 2147483646) + 1, last_error = s.detail,
         available_at = clock_timestamp() + s.delay, possible_duplicate = s.possible_duplicate
  FROM ` + settledRows + ` WHERE ` + fenced + ` RETURNING s.nth)
SELECT pg_current_snapshot()::text, coalesce(array_agg(nth), '{}') FROM changed`

// A dead letter that is there already, of a row that somebody copied back, stays.
const deadLetterSQL = `
WITH moved AS (
  DELETE FROM {outbox} r USING ` + settledRows + ` WHERE ` + fenced + `
  RETURNING ` + keptColumns + `, s.possible_duplicate, least(r.attempts, 2147483647 - s.refused) + s.refused AS attempts,
            s.detail AS last_error, s.reason AS failure_reason, s.nth),
kept AS (
  INSERT INTO {dead} (` + keptNames + `, possible_duplicate, attempts, last_error, failure_reason, dead_at)
  SELECT ` + keptNames + `, possible_duplicate, attempts, last_error, failure_reason, clock_timestamp() FROM moved
  ON CONFLICT DO NOTHING)
SELECT pg_current_snapshot()::text, coalesce(array_agg(nth), '{}') FROM moved`

// The rows of a batch that nobody else has locked are locked, …
const lockSQL = visibleSQL + ` FOR UPDATE OF r SKIP LOCKED`

// … and those that are there at all.
const visibleSQL = `
SELECT s.nth FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY s(id, message_id, nth)
JOIN {outbox} r ON ` + sameRow

// The rows of a batch that are dead letters.
const movedSQL = `
SELECT s.nth FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY s(id, message_id, nth)
JOIN {dead} r ON ` + sameRow

// keptNames are the columns that a dead letter has from its row as they are.
const (
	keptNames = `id, message_id, exchange, routing_key, ordering_key, payload, payload_bytes, headers, properties,
         redacted_payload, schema_version, created_at, expires_at, max_attempts, coalesce_key`
	keptColumns = `r.id, r.message_id, r.exchange, r.routing_key, r.ordering_key, r.payload, r.payload_bytes, r.headers, r.properties,
         r.redacted_payload, r.schema_version, r.created_at, r.expires_at, r.max_attempts, r.coalesce_key`
)

// A release makes a claimed row due at once and remembers whether it may have been
// published. A row that was never claimed is left as it is: a sweep finds it.
const releaseSQL = `
WITH changed AS (
  UPDATE {outbox} r SET available_at = clock_timestamp(), possible_duplicate = s.possible_duplicate
  FROM ` + settledRows + ` WHERE ` + fenced + ` AND r.available_at IS NOT NULL RETURNING s.nth)
SELECT pg_current_snapshot()::text, coalesce(array_agg(nth), '{}') FROM changed`

// Which rows a claim takes: those whose time has come …
const (
	dueRows  = `r.available_at <= (SELECT clock_timestamp())`
	dueOrder = `r.available_at`
)

// … or those that nobody has claimed, of a certain age and up to an id.
const (
	unclaimedRows  = `r.available_at IS NULL AND r.id <= $7 AND r.created_at <= (SELECT clock_timestamp()) - $6::interval`
	unclaimedOrder = `r.id`
)

// ofShard is the condition on the rows of a shard: that of the publication's row filter, so
// that stream and sweeps take the same rows. Postgres takes 1 of 200 rows to satisfy an
// equality with a hash, and half of them to satisfy a coalesce, which is nearer.
func ofShard(lead string, shard outbox.Shard, row string) string {
	if shard.Whole() {
		return ""
	}
	return lead + "coalesce(" + shard.Condition(row) + ", false)"
}

func newStatements(table outbox.Table, block bool, shard outbox.Shard) statements {
	unblocked, keyless := "true", "true"
	if block {
		unblocked, keyless = notBlocked, "d.ordering_key IS NULL"
	}
	// Twice, since {unblocked} brings {dead} with it.
	names := strings.NewReplacer("{outbox}", table.SQL(), "{dead}", table.DeadLetter().SQL(),
		"{version}", strconv.Itoa(outbox.SchemaVersion),
		"{longest_run}", strconv.Itoa(LongestRun), "{most_rows}", strconv.Itoa(MostRows),
		"{and_of_shard}", ofShard(" AND ", shard, "r."), "{where_of_shard}", ofShard(" WHERE ", shard, ""))
	fill := func(sql string) string { return names.Replace(strings.ReplaceAll(sql, "{unblocked}", unblocked)) }
	claim := func(heads, eligible, order string) string {
		class := strings.NewReplacer("{eligible}", eligible, "{order}", order)
		return fill(class.Replace(strings.Replace(claimSQL, "{heads}", heads, 1)))
	}
	return statements{
		leftover:       fill(leftoverSQL),
		claimDue:       claim(anyHeads, dueRows, dueOrder),
		claimUnclaimed: claim(anyHeads, unclaimedRows, unclaimedOrder),
		followDue:      claim(headsOfKeys, dueRows, dueOrder), followUnclaimed: claim(headsOfKeys, unclaimedRows, unclaimedOrder),
		nextDue:  fill(nextDueSQL),
		keyHeads: fill(keyHeadsSQL), keyRows: fill(keyRowsSQL),
		delete: fill(deleteSQL), retry: fill(retrySQL), deadLetter: fill(deadLetterSQL), release: fill(releaseSQL),
		lock: fill(lockSQL), visible: fill(visibleSQL), moved: fill(movedSQL), deleteNear: fill(deleteNearSQL),
		retention: strings.ReplaceAll(fill(retentionSQL), "{keyless}", keyless),
	}
}
