package store

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// planned is a store with a connection of its pool, and rows to name.
type planned struct {
	*tabletest.Tables
	store *Store
	args  map[string][]any
}

func newPlanned(t *testing.T) *planned {
	t.Helper()
	tables := tabletest.New(t)
	s, err := Open(pgdial.AddressOf(tables.URL, ""), Options{Table: tabletest.Name(), Block: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	held, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(held.Release)
	p := &planned{Tables: tables, store: s}
	p.Conn = held.Conn()
	p.Exec(`ALTER TABLE outbox SET (autovacuum_enabled = false)`)
	return p
}

func (p *planned) statements() map[string]string {
	const batch = 500
	var part []outbox.Settlement
	for i := range batch {
		m := &outbox.Message{Row: outbox.Row{ID: int64(tabletest.Rows + 1 + i*37), AvailableAt: new(time.Now())}}
		part = append(part, outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.Retry}})
	}
	var keys []string
	for i := range 100 {
		keys = append(keys, fmt.Sprintf("key %d", i*5))
	}
	settle := settleArgs(part)
	ids := make([]int64, batch)
	for i := range ids {
		ids[i] = int64(tabletest.Rows + 1 + i*37)
	}
	all := int64(math.MaxInt64)
	p.args = map[string][]any{
		"find due": {batch, time.Now()}, "find due after": {batch, time.Now(), time.Now().Add(-time.Hour), int64(1)}, "find newest": {int64(60_000), all, batch},
		"find keys": {all, "", batch, 1}, "find keys after": {all, "key 10", batch, 4},
		"find runs": {all, keys, 64}, "read rows": {all, 1 << 23, 1 << 13, ids}, "read range": {all, 1 << 23, 1 << 13, int64(60_000), ids, batch}, "late": {time.Hour, batch},
		"delete": settle[:2], "delete near": {settle[0], compactIDs(part), int64(1)}, "retry": settle, "dead letter": settle,
		"next due": {}, "lock free": settle[:2], "leftover": settle[:3],
	}
	sql := p.store.sql
	return map[string]string{
		"find due": sql.findDue, "find due after": sql.findDueAfter, "find newest": sql.findNewest, "find keys": sql.findKeys, "find keys after": sql.findKeysAfter,
		"find runs": sql.findRuns, "read rows": sql.readRows, "read range": sql.readRange, "late": sql.late,
		"delete": sql.delete, "delete near": sql.deleteNear, "retry": sql.retry, "dead letter": p.store.extras.columns.Fill(sql.deadLetter),
		"next due": sql.nextDue, "lock free": sql.lockFree, "leftover": sql.leftover,
	}
}

func (p *planned) generic(sql string, args int) string {
	p.Helper()
	p.Exec(`SET plan_cache_mode = force_generic_plan`)
	if _, err := p.Conn.Exec(p.Context(), `PREPARE generic AS `+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		p.Fatal(err)
	}
	var nulls string
	if args > 0 {
		nulls = "(" + strings.TrimSuffix(strings.Repeat("NULL, ", args), ", ") + ")"
	}
	plan := p.Lines(`EXPLAIN EXECUTE generic`+nulls, pgx.QueryExecModeSimpleProtocol)
	p.Exec(`DEALLOCATE generic`)
	p.Exec(`RESET plan_cache_mode`)
	return plan
}

func (p *planned) wantNoScan(state string) {
	p.Helper()
	for name, sql := range p.statements() {
		for kind, plan := range map[string]string{
			"custom":  p.Lines("EXPLAIN "+sql, p.args[name]...),
			"generic": p.generic(sql, len(p.args[name])),
		} {
			// One index entry tells whether a newer row supersedes a row.
			probes := strings.Count(plan, "Index Only Scan using outbox_coalesce_key_idx") + strings.Count(plan, "Index Scan using outbox_coalesce_key_idx")
			if strings.Contains(sql, "n.coalesce_key, n.id) > (") && (probes != 2 || strings.Contains(plan, "Sort Key: n")) {
				p.Errorf("%s, %s, %s plan:\n%s", state, name, kind, plan)
			}
			if scansAll(plan, false) {
				p.Errorf("%s, %s, %s plan:\n%s", state, name, kind, plan)
			}
		}
	}
}

var sortsKeys = regexp.MustCompile(`Sort Key: r\w*\.ordering_key, r\w*\.id`)

// scansAll reports whether a plan reads a whole table: by a scan, a hash or a merge, or by its primary key without a
// condition or with an open one. Walks: one scan in id order is allowed, to find the oldest rows.
func scansAll(plan string, walks bool) bool {
	if sortsKeys.MatchString(plan) {
		return true // it sorts all following rows to take some
	}
	lines := append(strings.Split(plan, "\n"), "")
	for i, line := range lines {
		if !strings.Contains(line, "Scan") || !strings.Contains(line, "on outbox") {
			continue
		}
		switch {
		case strings.Contains(line, "Seq Scan"), strings.Contains(plan, "Hash Cond"), strings.Contains(plan, "Merge Cond"):
			return true
		case strings.Contains(line, "outbox_pkey") && strings.Contains(lines[i+1], "Index Cond: (id < "):
			return true
		case strings.Contains(line, " outbox_pkey ") && !strings.Contains(lines[i+1], "Index Cond"):
			if !walks {
				return true
			}
			walks = false // only once
		}
	}
	return false
}

func (p *planned) wantNoScanAsItFills() {
	p.Helper()
	p.wantNoScan("empty")
	p.Fill(tabletest.Rows)
	p.wantNoScan("never analyzed")
	p.Exec(`ANALYZE outbox`)
	p.Exec(`ANALYZE outbox_dead_letter`)
	p.wantNoScan("analyzed")
}

func TestNoStatementScansTheTable(t *testing.T) {
	p := newPlanned(t)
	p.wantNoScanAsItFills()
	p.Exec(`DELETE FROM outbox WHERE id % 100 <> 0`)
	p.wantNoScan("with a hundredth left")
	p.Exec(`ANALYZE outbox`)
	p.wantNoScan("with a hundredth left, analyzed")
	// The file keeps its pages, so the planner expects rows in them from now on.
	p.Exec(`DELETE FROM outbox`)
	p.Exec(`ANALYZE outbox`)
	p.wantNoScan("emptied, analyzed")
	p.Exec(`VACUUM ANALYZE outbox`)
	p.wantNoScan("emptied, vacuumed")
}
