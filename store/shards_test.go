package store

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func of(shard outbox.Shard) statements {
	return newStatements(Options{Table: outbox.Table{Schema: "public", Name: "outbox"}, Block: true, Shard: shard})
}

// Without shards, statements have no additional condition.
func TestWithoutShardsNothingIsFiltered(t *testing.T) {
	sql := of(outbox.Shard{})
	for name, text := range map[string]string{
		"find due": sql.findDue, "find newest": sql.findNewest, "find keys": sql.findKeys, "find runs": sql.findRuns, "read rows": sql.readRows, "read range": sql.readRange,
		"delete": sql.delete, "delete near": sql.deleteNear, "retention": sql.retention,
	} {
		text = strings.ReplaceAll(text, "hashtextextended('cdc-relay await'", "") // a lock of outbox_await
		if strings.Contains(text, "hash") || strings.Contains(text, "of_shard") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if !strings.Contains(sql.findKeys, "(SELECT * FROM heads LIMIT $3)") || !strings.Contains(sql.findNewest, "<= 1\nORDER BY") {
		t.Errorf("%s%s", sql.findKeys, sql.findNewest)
	}
}

// Exactly one shard sweeps each row: the shard whose publication streams it. Some ids and hashes are negative.
func TestSweepsReadOnlyRowsOfTheirShard(t *testing.T) {
	const rows = 900
	for _, n := range []int{2, 3, 7} {
		p := newPlanned(t)
		p.Exec(`INSERT INTO outbox (id, routing_key, payload, ordering_key, available_at) OVERRIDING SYSTEM VALUE
			SELECT i - 450, 'r', '1', CASE i % 3 WHEN 0 THEN 'Schlüssel ' || i / 6 END, CASE WHEN i % 5 = 0 THEN now() END
			FROM generate_series(1, 900) i`)
		p.Exec(`DELETE FROM outbox WHERE id = 0`)
		p.Exec(`INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE VALUES (-9223372036854775808, 'r', '1')`)
		seen := map[string]int{}
		for _, shard := range outbox.ShardsOf(n) {
			mine := map[string]bool{}
			for id := range strings.SplitSeq(p.Lines(`SELECT id::text FROM outbox WHERE `+shard.Condition("outbox.")), "\n") {
				mine[id] = true
			}
			found := p.sweepOnce(of(shard))
			for id := range found {
				if seen[id]++; !mine[id] {
					t.Errorf("shard %s reads row %s, which belongs to another shard", shard, id)
				}
			}
			if len(found) < rows/n/2 {
				t.Errorf("shard %s reads %d of %d rows", shard, len(found), rows)
			}
		}
		if all := p.sweepOnce(of(outbox.Shard{})); len(all) != len(seen) {
			t.Errorf("%d shards read %d rows, want %d", n, len(seen), len(all))
		}
		for id, times := range seen {
			if times != 1 {
				t.Errorf("row %s is read by %d of %d shards", id, times, n)
			}
		}
	}
}

func (p *planned) sweepOnce(sql statements) map[string]bool {
	p.Helper()
	found := map[string]bool{}
	p.Exec(`BEGIN`)
	defer p.Exec(`ROLLBACK`)
	for _, query := range []struct {
		text string
		args []any
	}{
		{sql.findNewest, []any{int64(math.MinInt64), int64(math.MaxInt64), 1000}},
		{sql.readRange, []any{int64(math.MaxInt64), 1 << 23, 1 << 13, int64(math.MinInt64), []int64{}, 1000}},
		{sql.findKeys, []any{int64(math.MaxInt64), "", 1000, 1}},
		{sql.findDue, []any{1000, nil}},
	} {
		rows, _ := p.Conn.Query(p.Context(), query.text, query.args...)
		all, err := pgx.CollectRows(rows, pgx.RowToMap)
		if err != nil {
			p.Fatal(err)
		}
		for _, row := range all {
			found[fmt.Sprint(row["id"])] = true
		}
	}
	return found
}

// A shard has the plans of the whole table, with a filter.
func TestNoStatementOfAShardScansTheTable(t *testing.T) {
	p := newPlanned(t)
	p.store.sql = of(outbox.Shard{Index: 1, Of: 4})
	p.wantNoScanAsItFills()
	p.wantNoSort("analyzed")
	p.Exec(`DELETE FROM outbox`)
	p.Exec(`ANALYZE outbox`)
	p.wantNoScan("emptied, analyzed")
}

// wantNoSort checks that the rows are read in the wanted order, up to the limit.
func (p *planned) wantNoSort(state string) {
	p.Helper()
	statements := p.statements()
	for _, name := range []string{"find newest", "find due", "find due after", "read range"} {
		plan := p.Lines("EXPLAIN "+statements[name], p.args[name]...)
		if strings.Contains(plan, "Sort") || strings.Contains(plan, "Bitmap") {
			p.Errorf("%s, %s:\n%s", state, name, plan)
		}
	}
}
