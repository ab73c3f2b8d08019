package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Key is an ordering key with rows in the outbox.
type Key struct {
	Key string
	// Behind counts the rows behind the first one, up to MostBehind.
	Behind Count
	// First is the oldest row.
	First Message
	// Dead is the dead letter of the key with the lowest id; nil: none.
	Dead *int64
}

// MostBehind is up to how many rows behind the first one are counted.
const MostBehind = 1000

// The oldest row of each key, found by skipping from key to key.
const allKeysSQL = `
WITH RECURSIVE heads AS (
  (SELECT r.ordering_key, r.id FROM {outbox} r WHERE {from} ORDER BY r.ordering_key, r.id LIMIT 1)
  UNION ALL
  SELECT n.ordering_key, n.id FROM heads h CROSS JOIN LATERAL (SELECT r.ordering_key, r.id FROM {outbox} r
    WHERE r.ordering_key > h.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) n)
SELECT h.ordering_key, h.id, NULL::timestamptz, true, false FROM heads h LIMIT {limit}`

// Of the rows that wait for a time, the ones that are the oldest of their key.
const timedKeysSQL = `
SELECT coalesce(r.ordering_key, ''), r.id, r.available_at, r.matches, r.nth = {looked} FROM (
  SELECT r.*, r.ordering_key IS NOT NULL AND NOT EXISTS (
         SELECT 1 FROM {outbox} e WHERE e.ordering_key = r.ordering_key AND e.id < r.id) AS matches
  FROM (SELECT r.ordering_key, r.id, r.available_at, row_number() OVER (ORDER BY r.available_at, r.id) AS nth
        FROM {outbox} r
        WHERE r.available_at > (SELECT clock_timestamp()) AND {from} ORDER BY r.available_at, r.id LIMIT {looked}) r) r
WHERE r.matches OR r.nth = {looked} ORDER BY r.available_at, r.id LIMIT {limit}`

// The keys of dead letters that have rows, except those of timedKeysSQL.
const blockedKeysSQL = `
WITH RECURSIVE keys AS (
  (SELECT r.ordering_key FROM {dead} r WHERE {from} ORDER BY r.ordering_key LIMIT 1)
  UNION ALL
  SELECT n.ordering_key FROM keys k CROSS JOIN LATERAL (
    SELECT d.ordering_key FROM {dead} d WHERE d.ordering_key > k.ordering_key ORDER BY d.ordering_key LIMIT 1) n)
SELECT k.ordering_key, coalesce(f.id, 0), NULL::timestamptz, coalesce(f.matches, false), k.nth = {looked}
FROM (SELECT k.ordering_key, row_number() OVER () AS nth FROM keys k LIMIT {looked}) k
LEFT JOIN LATERAL (SELECT r.id, coalesce(r.available_at <= clock_timestamp(), true) AS matches FROM {outbox} r
  WHERE r.ordering_key BETWEEN k.ordering_key AND k.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) f ON true
WHERE coalesce(f.matches, false) OR k.nth = {looked} LIMIT {limit}`

// The details of each key.
const keyDetailsSQL = `
SELECT {columns}, w.key,
       (SELECT count(*) FROM (SELECT 1 FROM {outbox} b WHERE b.ordering_key BETWEEN w.key AND w.key
          AND b.id > w.id ORDER BY b.ordering_key, b.id LIMIT {behind}) b),
       (SELECT pg_catalog.min(d.id) FROM (SELECT d.id FROM {dead} d WHERE d.ordering_key = w.key LIMIT {behind}) d)
FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY w(key, id, nth) JOIN {outbox} r ON r.id BETWEEN w.id AND w.id
  ORDER BY w.nth`

// Keys returns a page of the ordering keys with rows, by name. Its cost depends on neither the number of rows nor that
// of keys. ErrCursor: the cursor is of another list.
func (t *Tables) Keys(ctx context.Context, page Page) (Listing[Key], error) {
	after, err := parseCursor(page.After, byKey)
	if err != nil {
		return Listing[Key]{}, err
	}
	return t.keys(ctx, allKeysSQL, byKey, after, page.Limit)
}

// byBlocked is the order of the keys that a dead letter blocks.
const byBlocked = "d.ordering_key"

// BlockedKeys returns the keys whose head waits for its time, earliest first. With block, the keys that a dead letter
// blocks follow. ErrCursor: the cursor is of another list.
func (t *Tables) BlockedKeys(ctx context.Context, block bool, page Page) (list Listing[Key], err error) {
	after, err := parseCursor(page.After, byTime, byBlocked)
	if err != nil {
		return list, err
	}
	if after == nil || after.List == byTime {
		list, err = t.keys(ctx, timedKeysSQL, byTime, after, page.Limit)
		if err != nil || list.Next != "" || !block {
			return list, err
		}
		if len(list.Rows) == page.Limit { // blocked keys may follow
			list.Next = cursor{List: byBlocked, Start: true}.text()
			return list, nil
		}
		after = nil
	}
	more, err := t.keys(ctx, blockedKeysSQL, byBlocked, after, page.Limit-len(list.Rows))
	list.Rows, list.Next = append(list.Rows, more.Rows...), more.Next
	return list, err
}

// mostJudged is among how many keys BlockedKey chooses.
const mostJudged = 20

// BlockedKey returns the key with the most rows behind a rejected head or, with block, behind a dead letter, among the
// keys that are tried again first; nil: none.
func (t *Tables) BlockedKey(ctx context.Context, block bool) (worst *Key, err error) {
	list, err := t.BlockedKeys(ctx, block, Page{Limit: mostJudged})
	for i, key := range list.Rows {
		if !block {
			list.Rows[i].Dead = nil
		}
		waits := list.Rows[i].Dead != nil || (key.First.State == Retrying && key.Behind.N > 0)
		if waits && (worst == nil || key.Behind.N > worst.Behind.N) {
			worst = &list.Rows[i]
		}
	}
	return worst, err
}

func (t *Tables) keys(
	ctx context.Context, looked, order string, after *cursor, limit int,
) (list Listing[Key], err error) {
	var from conditions
	switch {
	case order == byTime:
		from.after(after)
	case after != nil && after.Key != nil:
		from.add("r.ordering_key > %s", *after.Key)
	default:
		from.add("r.ordering_key IS NOT NULL")
	}
	var heads Listing[keyHead]
	err = t.glanceAt(ctx, mostListed(), func(ctx context.Context, tx querier, most string) (err error) {
		sql := t.fill(looked,
			"{from}", from.String(),
			"{looked}", fmt.Sprint(MostLooked),
			"{limit}", fmt.Sprint(limit+1))
		heads, err = collectPage(ctx, tx, sql, from.args, limit, func(
			row pgx.CollectableRow,
		) (head keyHead, at place, err error) {
			var time pgtype.Timestamptz
			err = row.Scan(&head.key, &head.id, &time, &at.matches, &at.last)
			at.cursor = cursor{List: order, ID: head.id, Key: &head.key}
			if order == byTime {
				at.At = timeText(time)
			}
			return head, at, err
		})
		if err == nil && len(heads.Rows) > 0 {
			list.Rows, err = t.keyDetails(ctx, tx, heads.Rows, most)
		}
		list.Next = heads.Next
		return err
	})
	return list, t.reading(ctx, "list ordering keys of", err)
}

type keyHead struct {
	key string
	id  int64
}

// keyDetails leaves out keys whose head has left meanwhile.
func (t *Tables) keyDetails(ctx context.Context, tx querier, heads []keyHead, most string) ([]Key, error) {
	var names []string
	var ids []int64
	for _, head := range heads {
		names, ids = append(names, head.key), append(ids, head.id)
	}
	sql := t.fill(keyDetailsSQL,
		"{columns}", waitingColumns(false, lockedBySQL, stateBy(lockedBySQL)),
		"{behind}", fmt.Sprint(MostBehind+1))
	rows, err := tx.Query(ctx, strings.ReplaceAll(sql, "{most}", most), names, ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (key Key, err error) {
		var behind int64
		key.First, err = scanWaiting(row, &key.Key, &behind, &key.Dead)
		key.Behind = counted(behind, MostBehind+1)
		return key, err
	})
}
