package operator

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
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

// MostBehind is up to how many rows behind others are counted.
const MostBehind = 1000

// keyList is a list of ordering keys: a statement for their oldest rows, and its order.
type keyList struct {
	sql string
	in  span
}

// allKeys skips from key to key.
func allKeys() keyList {
	return keyList{
		`
WITH RECURSIVE heads AS (
  (SELECT r.ordering_key, r.id FROM {outbox} r WHERE {after} ORDER BY r.ordering_key, r.id LIMIT 1)
  UNION ALL
  SELECT n.ordering_key, n.id FROM heads h CROSS JOIN LATERAL (SELECT r.ordering_key, r.id FROM {outbox} r
    WHERE r.ordering_key > h.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) n)
SELECT r.ordering_key, r.id, {place}, true, false FROM heads r LIMIT {limit}`,
		span{columns: []string{"r.ordering_key"}, first: "r.ordering_key IS NOT NULL"},
	}
}

// timedKeys reads the rows that wait for a time, and picks the ones that are the oldest of their key.
func timedKeys() keyList {
	return keyList{`
SELECT coalesce(r.ordering_key, ''), r.id, {place}, r.matches, r.nth = {looked} FROM (
  SELECT r.*, r.ordering_key IS NOT NULL AND NOT EXISTS (
         SELECT 1 FROM {outbox} e WHERE e.ordering_key = r.ordering_key AND e.id < r.id) AS matches
  FROM (SELECT r.ordering_key, r.id, r.available_at, row_number() OVER (ORDER BY {order}) AS nth
        FROM {outbox} r WHERE {after} ORDER BY {order} LIMIT {looked}) r) r
WHERE r.matches OR r.nth = {looked} ORDER BY {order} LIMIT {limit}`, byTime(timeIsToCome, "")}
}

// deadKeys skips through the keys of dead letters. It picks those with rows that timedKeys does not pick.
func deadKeys() keyList {
	return keyList{
		`
WITH RECURSIVE keys AS (
  (SELECT d.ordering_key FROM {dead} d WHERE {after} ORDER BY d.ordering_key LIMIT 1)
  UNION ALL
  SELECT n.ordering_key FROM keys k CROSS JOIN LATERAL (
    SELECT d.ordering_key FROM {dead} d WHERE d.ordering_key > k.ordering_key ORDER BY d.ordering_key LIMIT 1) n)
SELECT d.ordering_key, coalesce(f.id, 0), {place}, coalesce(f.matches, false), d.nth = {looked}
FROM (SELECT k.ordering_key, row_number() OVER () AS nth FROM keys k LIMIT {looked}) d
LEFT JOIN LATERAL (SELECT r.id, coalesce(r.available_at <= clock_timestamp(), true) AS matches FROM {outbox} r
  WHERE r.ordering_key BETWEEN d.ordering_key AND d.ordering_key ORDER BY r.ordering_key, r.id LIMIT 1) f ON true
WHERE coalesce(f.matches, false) OR d.nth = {looked} LIMIT {limit}`,
		span{columns: []string{"d.ordering_key"}, first: "d.ordering_key IS NOT NULL"},
	}
}

// The details of each key.
const keyDetailsSQL = withLocks + `
SELECT {columns}, r.key,
       (SELECT count(*) FROM (SELECT 1 FROM {outbox} b WHERE b.ordering_key BETWEEN r.key AND r.key
          AND b.id > r.id ORDER BY b.ordering_key, b.id LIMIT {behind}) b),
       (SELECT pg_catalog.min(d.id) FROM (SELECT d.id FROM {dead} d WHERE d.ordering_key = r.key LIMIT {behind}) d)
FROM ({stated}) r ORDER BY r.nth`

const keyHeadsSQL = `SELECT ` + rowColumns + `, {own}, w.key, w.nth
      FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY w(key, id, nth)
      JOIN {outbox} r ON r.id BETWEEN w.id AND w.id`

// Keys returns a page of the ordering keys with rows, by name. With blocked, it returns the keys whose head waits for
// its time, earliest first, and then, if dead letters block their keys, those. Its cost depends on neither the number
// of rows nor that of keys. ErrCursor: the cursor is of another list.
func (t *Tables) Keys(ctx context.Context, blocked bool, k Known, page Page) (list Listing[Key], err error) {
	lists := []span{allKeys().in}
	if blocked {
		lists = []span{timedKeys().in, deadKeys().in}
	}
	after, err := parseCursor(page.After, lists...)
	if err != nil {
		return list, err
	}
	if !blocked {
		return t.keys(ctx, allKeys(), k, after, page.Limit)
	}
	dead := cursor{List: deadKeys().in.order()}
	if after == nil || after.List != dead.List {
		list, err = t.keys(ctx, timedKeys(), k, after, page.Limit)
		if err != nil || list.Next != "" || !k.Block {
			return list, err
		}
		if len(list.Rows) == page.Limit { // blocked keys may follow
			list.Next = dead.text()
			return list, nil
		}
		after = nil
	}
	more, err := t.keys(ctx, deadKeys(), k, after, page.Limit-len(list.Rows))
	list.Rows, list.Next = append(list.Rows, more.Rows...), more.Next
	return list, err
}

// mostJudged is among how many keys BlockedKey chooses.
const mostJudged = 20

// BlockedKey returns the key with the most rows behind a rejected head or behind a dead letter that blocks it, among
// the keys that are tried again first; nil: none.
func (t *Tables) BlockedKey(ctx context.Context, k Known) (worst *Key, err error) {
	list, err := t.Keys(ctx, true, k, Page{Limit: mostJudged})
	for i, key := range list.Rows {
		if !k.Block {
			list.Rows[i].Dead = nil
		}
		waits := list.Rows[i].Dead != nil || (key.First.State == Retrying && key.Behind.N > 0)
		if waits && (worst == nil || key.Behind.N > worst.Behind.N) {
			worst = &list.Rows[i]
		}
	}
	return worst, err
}

type keyHead struct {
	key string
	id  int64
}

func (t *Tables) keys(
	ctx context.Context, of keyList, k Known, after *cursor, limit int,
) (list Listing[Key], err error) {
	var from conditions
	of.in.addTo(&from, after)
	sql := strings.NewReplacer("{place}", of.in.place(), "{order}", of.in.order(), "{after}", from.String(),
		"{looked}", fmt.Sprint(MostLooked), "{limit}", fmt.Sprint(limit+1)).Replace(of.sql)
	heads, err := readPage(ctx, t, of.in, after, sql, "", from.args, limit,
		func(row pgx.CollectableRow, more ...any) (head keyHead, err error) {
			return head, row.Scan(append([]any{&head.key, &head.id}, more...)...)
		})
	list.Next = heads.Next
	if err == nil && len(heads.Rows) > 0 {
		list.Rows, err = t.keyDetails(ctx, heads.Rows, k)
	}
	return list, t.reading(ctx, waiting(k), "list ordering keys of", err)
}

// keyDetails leaves out keys whose head has left meanwhile.
func (t *Tables) keyDetails(ctx context.Context, heads []keyHead, k Known) (keys []Key, err error) {
	var names []string
	var ids []int64
	for _, head := range heads {
		names, ids = append(names, head.key), append(ids, head.id)
	}
	from := waiting(k)
	sql := strings.NewReplacer("{columns}", from.columns(false), "{behind}", fmt.Sprint(MostBehind+1),
		"{stated}", from.stated(strings.ReplaceAll(keyHeadsSQL, "{own}", from.own))).Replace(keyDetailsSQL)
	err = t.read(ctx, t.glance, sql, mostListed(), []any{names, ids}, func(rows pgx.Rows) (err error) {
		keys, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (key Key, err error) {
			var behind int64
			key.First, err = scanMessage(row, &key.Key, &behind, &key.Dead)
			key.Behind = counted(behind, MostBehind+1)
			return key, err
		})
		return err
	})
	return keys, err
}
