package operator

import (
	"context"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// planned returns tables without autovacuum, and an operator on their connection.
func planned(t *testing.T) (*tabletest.Tables, *Tables) {
	t.Helper()
	p := tabletest.New(t)
	p.Conn = tabletest.Connect(t, p.URL) // the migrations reset its settings
	p.Exec(`ALTER TABLE outbox SET (autovacuum_enabled = false)`)
	o, err := New(t.Context(), p.Conn, tabletest.Name())
	if err != nil {
		t.Fatal(err)
	}
	return p, o
}

// Cheap statements neither read nor sort a whole table, however many rows it has.
func TestStatsScansNoTable(t *testing.T) {
	p, o := planned(t)
	p.Fill(tabletest.Rows)
	const most = MostCounted + 1
	none := []int64{}
	blocking := &statsReader{Tables: o, block: true}
	groups := GroupOptions{Most: 10, Header: "task", Keys: &Cause{Reason: "nack"}}
	deadGroups, args := deadGroupsSQL(groups)
	retryGroups, _ := retryGroupsSQL(groups)
	args = append([]any{most}, args...)
	named, ids := Filter{MessageIDs: []outbox.UUID{{1}}}.where(ofOutbox, nil)
	lookup := strings.NewReplacer("{columns}", "r.id", "{locked_by}", lockedBySQL, "{where}", timedRows+named, "{limit}", "100").Replace(waitingNamedSQL)
	statements := map[string][]any{
		lookup:  ids,
		rowsSQL: {most}, pendingSQL: {100, none}, blockedSQL: {most}, deadRowsSQL: {most},
		blocking.statesStatement(sampledRows): {most, none, 50, o.table.SQL()},
		blocking.statesStatement(oldestRows):  {most, none}, blocking.statesStatement(dueRows): {most, none}, blocking.statesStatement(futureRows): {most, none},
		`SELECT min(dead_at), max(dead_at) FROM {dead}`:           nil,
		`SELECT coalesce(max(id) - min(id) + 1, 0) FROM {outbox}`: nil,
		keyOfSQL:                   {"key 5", 100_000, most},
		deadGroups:                 args,
		retryGroups:                args,
		offeredStatement(ofOutbox): {100},
		strings.NewReplacer("{columns}", "r.id, r.state", "{state}", stateBy("r.locked_by")).Replace(newestWaitingSQL): {50},
		offeredStatement(ofDeadLetters): {100},
		strings.NewReplacer("{last_error}", shownText("r.last_error"), "{locked_by}", lockedBySQL, "{state}", stateBy(lockedBySQL)).Replace(firstOfKeySQL): {"key 5", 100_000},
	}
	for _, state := range []string{"never analyzed", "analyzed", "with a hundredth left"} {
		switch state {
		case "analyzed":
			p.Exec(`ANALYZE outbox`)
			p.Exec(`ANALYZE outbox_dead_letter`)
		case "with a hundredth left":
			p.Exec(`DELETE FROM outbox WHERE id % 100 <> 0`)
		}
		for sql, args := range statements {
			var plan string
			err := o.glance(t.Context(), func(_ context.Context, _ querier) error {
				plan = p.Lines("EXPLAIN "+o.fill(sql), args...)
				return nil
			})
			if err != nil || strings.Contains(plan, "Seq Scan on outbox") || strings.Contains(plan, "Bitmap") ||
				sql == lookup && !strings.Contains(plan, "Index Cond: ((message_id >= ") {
				t.Errorf("%s: %v\n%s\n%s", state, err, sql, plan)
			}
		}
	}
}

// A table full of dead rows makes a part of the answer unknown, but does not delay the answer.
func TestStatsGivesUpASlowStatement(t *testing.T) {
	p, o := planned(t)
	reader := &statsReader{Tables: o}
	reader.most.Valid, reader.most.Int64 = true, MostCounted+1
	p.Exec(`INSERT INTO outbox (routing_key, payload) SELECT 'r', '1' FROM generate_series(1, 100)`)
	p.Exec(`VACUUM ANALYZE outbox`) // ANALYZE alone may count rows twice that the server has just counted
	var count Count
	err := o.glance(t.Context(), func(ctx context.Context, tx querier) (err error) {
		p.Exec(`SET statement_timeout = '50ms'`)
		count, err = reader.size(ctx, tx, `SELECT count(*) FROM {outbox}, pg_sleep(60) LIMIT $1`, tabletest.Name(), "")
		return err
	})
	if err != nil || count != (Count{100, Estimate}) {
		t.Errorf("got %+v, %v", count, err)
	}
}

// An id uses the primary key, however many rows there are; a message_id needs a scan.
func TestRequeueAndPurgeUseThePrimaryKey(t *testing.T) {
	p, o := planned(t)
	p.Fill(tabletest.Rows)
	p.Exec(`ANALYZE outbox_dead_letter`)
	ids, uuids := make([]int64, 1000), make([][16]byte, 1000)
	for sql, args := range map[string][]any{
		o.fill(purgeSQL): {ids, uuids}, o.requeueStatement(nil): {ids, uuids, ids},
		o.fill(retrySQL): {ids, uuids}, o.fill(deleteSQL): {ids, uuids},
	} {
		if plan := p.Lines("EXPLAIN "+sql, args...); strings.Contains(plan, "Seq Scan on outbox") {
			t.Errorf("%s", plan)
		}
	}
}
