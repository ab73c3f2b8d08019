package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// A batch of deletes is written before it fills the window, but not too early.
func TestASmallWindowIsNotBlockedByPendingDeletes(t *testing.T) {
	for _, test := range []struct{ maxInFlight, batch, enough int }{
		{2000, 500, 500}, {2000, 100, 100}, {400, 500, 100}, {40, 500, 10}, {3, 500, 1}, {1, 500, 1},
	} {
		config := DefaultConfig()
		config.DatabaseURL, config.MaxInFlight, config.BatchSize = "postgres://localhost/none", test.maxInFlight, test.batch
		r, err := New(config, outboxtest.NewPublisher(nil), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		must(t, err)
		defer r.Close()
		leads(r.core)
		for n := 1; n <= test.enough; n++ {
			if len(r.settler.pending.flushNow) > 0 {
				t.Errorf("window %d, batch %d: %d rows are not written at once", test.maxInFlight, test.batch, n-1)
			}
			m := &outbox.Message{Row: outbox.Row{ID: int64(n)}}
			if _, v := r.core.Streamed(m, 1, true); v != core.Taken {
				t.Fatalf("row %d of a window of %d: %v", n, test.maxInFlight, v)
			}
			r.awaited.sent(m)
			r.Deliver(outbox.Result{Message: m, Outcome: outbox.Confirmed})
		}
		if len(r.settler.pending.flushNow) == 0 || !r.settler.pending.full() {
			t.Errorf("window %d, batch %d: %d rows are not kept for a larger batch", test.maxInFlight, test.batch, test.enough)
		}
	}
}

// Batches cost less, and they may delay a caller of outbox_await. After a pause there is nothing to batch.
func TestABatchWaitsUnlessSomebodyWaitsForIt(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, test := range []struct {
		wrote, awaited time.Time
		want           time.Duration
	}{
		{time.Time{}, time.Time{}, promptWait},
		{ago(promptAfter + 1), time.Time{}, promptWait},
		{ago(promptAfter), time.Time{}, batchWait},
		{ago(0), ago(promptAfter), batchWait},
		{ago(0), ago(promptAfter - 1), promptWait},
	} {
		s := settler{wrote: test.wrote, awaited: test.awaited}
		if got := s.batchWait(now); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

// Invisible rows that are tried again together with new ones count too.
func TestAStatementSettlesAtMostOneBatch(t *testing.T) {
	i := newInstance(t)
	i.config.BatchSize = 2
	const rows = 4
	r, registry := i.confirmed(rows, slog.DiscardHandler)
	for _, one := range r.settler.pending.take() {
		r.settler.waiting.add(one, time.Now().Add(-firstWait))
	}

	end := r.settle(t)
	i.await("all rows to be settled", func() bool { return r.observer.written.Load() == rows })
	end()
	wantSettled(t, registry, 2, rows)
}

// Failed tries are not counted.
func TestSettledRowsAreCountedOnceWritten(t *testing.T) {
	i := newInstance(t)
	r, registry := i.confirmed(2, slog.DiscardHandler)
	tx, err := i.db.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	tabletest.Run(t, tx, `SELECT FROM outbox WHERE id = 1 FOR UPDATE`)
	end := r.settle(t)
	i.await("one row to be settled", func() bool { return r.observer.written.Load() == 1 })
	locker := fmt.Sprintf("row 1 is locked by Postgres process %d (", tx.Conn().PgConn().PID())
	i.await("the session that locks the other to be named", func() bool { return strings.Contains(r.settler.locked.Current(), locker) })
	must(t, tx.Rollback(t.Context()))
	i.await("both rows to be settled", func() bool { return r.observer.written.Load() == 2 })
	end()
	wantSettled(t, registry, 2, 2)
}

func TestARowThatCannotBeDeletedStopsNoOther(t *testing.T) {
	i := newInstance(t)
	r, registry := i.confirmed(3, slog.DiscardHandler)
	i.exec(`CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'kept'; END $$`)
	i.exec(`CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION keep()`)
	end := r.settle(t)
	i.await("the others to be settled", func() bool { return r.observer.written.Load() == 2 })
	end()
	scrapeOf(t, registry).want(t, "cdc_relay_rows_set_aside_total", 1)
}

// The server sends a transaction before others see it.
func TestARowThatIsNotVisibleYetWaits(t *testing.T) {
	i := newInstance(t)
	r, _ := i.confirmed(1, slog.DiscardHandler)
	one := r.settler.pending.take()
	must(t, r.settler.settle(t.Context(), one)) // it connects to its first server
	tx, err := i.db.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	m := one[0].Message
	m.Server = r.store.Restarts()
	must(t, tx.QueryRow(t.Context(), `INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')
		RETURNING id, message_id, pg_current_xact_id()::text::bigint % 4294967296`).Scan(&m.ID, (*[16]byte)(&m.MessageID), &m.XID))
	must(t, r.settler.settle(t.Context(), one))
	if rows := r.settler.waiting.rows; len(rows) != 1 || rows[0].Message != m {
		t.Errorf("waiting: %+v", rows)
	}
}

// Ten thousand such rows may be in memory.
func TestARowSetAsideKeepsNoBody(t *testing.T) {
	i := newInstance(t)
	r, _ := i.confirmed(1, slog.DiscardHandler)
	one := r.settler.pending.take()[0]
	one.Message.Payload, one.Message.Headers, one.Message.Properties = []byte("1"), []byte("{}"), []byte("{}")
	r.settler.setAside(t.Context(), one, errors.New("a trigger prevents it"))
	if m := one.Message; m.Payload != nil || m.Headers != nil || m.Properties != nil {
		t.Errorf("%+v", m)
	}
}

// leads lets the core of a relay lead for ever: on a slow machine no row is late.
func leads(c *core.Core) {
	c.Clock = func() time.Time { return time.Unix(1_000_000, 0) }
	c.BeginTerm(core.Lead{})
	c.Owned(c.Clock())
	c.PublisherReady(true)
}

// confirmed returns a relay whose first rows, without a key, are confirmed. The test settles them.
func (i *instance) confirmed(rows int64, log slog.Handler) (settlerOnly, *prometheus.Registry) {
	i.t.Helper()
	registry := prometheus.NewRegistry()
	r := i.new(i.publisher(), log, registry)
	i.t.Cleanup(r.Close)
	leads(r.core)
	for id := int64(1); id <= rows; id++ {
		row := &outbox.Message{Row: outbox.Row{ID: id}}
		must(i.t, i.db.QueryRow(i.t.Context(), `INSERT INTO outbox (id, routing_key, payload) OVERRIDING SYSTEM VALUE
			VALUES ($1, 'r', '1') RETURNING message_id`, id).Scan((*[16]byte)(&row.MessageID)))
		r.core.Streamed(row, 1, true)
		r.awaited.sent(row)
		r.Deliver(outbox.Result{Message: row, Outcome: outbox.Confirmed})
	}
	return settlerOnly{r}, registry
}

// settlerOnly is a relay of which only the settler runs.
type settlerOnly struct{ *Relay }

func (r settlerOnly) settle(t *testing.T) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.settler.run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		must(t, <-ended)
	}
}

func wantSettled(t *testing.T, registry prometheus.Gatherer, statements uint64, rows float64) {
	t.Helper()
	settled := scrapeOf(t, registry).histograms["cdc_relay_settle_batch_rows"]
	if n, sum := settled.GetSampleCount(), settled.GetSampleSum(); n != statements || sum != rows {
		t.Errorf("%v rows were settled by %d statements, want %v by %d", sum, n, rows, statements)
	}
}

// The connection ends between the commit and its answer.
func TestADeadLetterWithAnUnknownCommitIsReported(t *testing.T) {
	i := newInstance(t)
	address, err := url.Parse(i.config.DatabaseURL)
	must(t, err)
	proxy := services.NewProxy(t, address.Host)
	address.Host = proxy.Addr()
	i.config.DatabaseURL = address.String()
	var calls hookCalls
	i.config.Hooks.DeadLettered = calls.hook("dead")
	var log bytes.Buffer
	r, registry := i.confirmed(0, slog.NewTextHandler(&log, nil))
	r.observer.hooks.start()
	end := r.settle(t)
	dies := func() {
		t.Helper()
		m := &outbox.Message{}
		must(t, i.db.QueryRow(t.Context(), `INSERT INTO outbox (routing_key, payload) VALUES ('r', '1') RETURNING id, message_id`).
			Scan(&m.ID, (*[16]byte)(&m.MessageID)))
		r.core.Streamed(m, 1, true)
		r.awaited.sent(m)
		r.Deliver(outbox.Result{Message: m, Outcome: outbox.Impossible, Reason: outbox.ReasonTooLarge})
	}
	dies()
	i.await("a dead letter", func() bool { return r.observer.written.Load() == 1 })

	proxy.BlackHole(services.Downstream)
	dies()
	i.await("a commit whose answer is on its way", func() bool {
		var dead int
		must(t, i.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox_dead_letter`).Scan(&dead))
		return dead == 2
	})
	proxy.Cut()
	proxy.Resume(services.Downstream)
	i.await("the row to be settled", func() bool { return r.observer.written.Load() == 2 })
	end()
	r.observer.hooks.end()
	if n := calls.count("dead"); n != 2 {
		t.Errorf("the hook was called %d times, want 2", n)
	}
	if n := strings.Count(log.String(), "message dead-lettered"); n != 2 {
		t.Errorf("%d lines report it, want 2:\n%s", n, log.String())
	}
	scrapeOf(t, registry).want(t, "cdc_relay_messages_dead_lettered_total", 2)
}

// slowTable is the outbox and a relay that does not run. The trigger stands for the time that many deletes take.
func slowTable(t *testing.T, table string) (*tabletest.Tables, *Relay) {
	t.Helper()
	f := tabletest.New(t)
	f.Exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM gone) > 2 THEN
			RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
		END IF; RETURN NULL; END $$`)
	f.Exec(`CREATE TRIGGER slow AFTER DELETE ON ` + table + ` REFERENCING OLD TABLE AS gone
		FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
	config := DefaultConfig()
	config.DatabaseURL, config.DeadLetterRetention = f.URL, 24*time.Hour
	r, err := New(config, outboxtest.NewPublisher(nil), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	t.Cleanup(r.Close)
	return f, r
}

func TestDeadLettersThatTakeLongAreDeletedInSmallerBatches(t *testing.T) {
	f, r := slowTable(t, "outbox_dead_letter")
	for id := range int64(7) {
		f.DeadLetter(id, "nack", "dead_at", "now() - interval '2 days'")
	}
	r.newRetention().round(t.Context())
	if left := tabletest.One[int](f, `SELECT count(*) FROM outbox_dead_letter`); left != 0 {
		t.Errorf("%d dead letters stay", left)
	}
}

func TestPublishedRowsThatTakeLongAreDeletedInSmallerBatches(t *testing.T) {
	f, r := slowTable(t, "outbox")
	var batch []outbox.Settlement
	for range 7 {
		f.Plain(1)
		row := outbox.Row{ID: tabletest.One[int64](f, `SELECT max(id) FROM outbox`)}
		f.Scan((*[16]byte)(&row.MessageID), `SELECT message_id FROM outbox WHERE id = $1`, row.ID)
		one := outbox.Settlement{Message: &outbox.Message{Row: row}, Decision: outbox.Decision{Action: outbox.Delete}}
		batch = append(batch, one)
	}
	if err := r.settler.settle(t.Context(), batch); err != nil {
		t.Error(err)
	}
	if left := tabletest.One[int](f, `SELECT count(*) FROM outbox`); left != 0 {
		t.Errorf("%d rows stay", left)
	}
}

func settlementOf(id int64) outbox.Settlement {
	return outbox.Settlement{
		Message:  &outbox.Message{Row: outbox.Row{ID: id}},
		Decision: outbox.Decision{Action: outbox.Delete},
	}
}

func with(id int64, change func(*outbox.Settlement)) outbox.Settlement {
	s := settlementOf(id)
	change(&s)
	return s
}

func locked(s *outbox.Settlement) { s.Locked = true }

func aside(s *outbox.Settlement) { s.Fault = &outbox.Fault{} }

func dueIDs(rows []outbox.Settlement) (ids []int64) {
	for _, row := range rows {
		ids = append(ids, row.Message.ID)
	}
	return ids
}

func TestTheWaitOfARowDoublesUpToASecond(t *testing.T) {
	var w waitingRows
	first := time.Now()
	now, want := first, firstWait
	w.add(settlementOf(1), now)
	for range 12 {
		if got := w.next(now, time.Hour); got != want {
			t.Fatalf("the row is due in %s, want %s", got, want)
		}
		if early := w.due(now.Add(want-1), 10); early != nil {
			t.Fatalf("after %s less than the wait: %v", time.Nanosecond, dueIDs(early))
		}
		now = now.Add(want)
		rows := w.due(now, 10)
		if !slices.Equal(dueIDs(rows), []int64{1}) {
			t.Fatalf("due after %s: %v", want, dueIDs(rows))
		}
		w.add(rows[0], now)
		want = min(now.Sub(first), lastWait)
	}
	if want != lastWait {
		t.Errorf("the last wait is %s", want)
	}
}

// A row that is locked for hours must not delay one that is invisible for a moment.
func TestEachRowHasItsOwnWait(t *testing.T) {
	var w waitingRows
	now := time.Now()
	w.add(with(1, locked), now)
	for range 12 {
		now = now.Add(lastWait)
		w.add(w.due(now, 10)[0], now)
	}
	w.add(settlementOf(2), now)
	if got := w.next(now, time.Hour); got != firstWait {
		t.Errorf("the new row is due in %s", got)
	}
	if got := dueIDs(w.due(now.Add(firstWait), 10)); !slices.Equal(got, []int64{2}) {
		t.Errorf("due: %v", got)
	}
	// A row that was settled, and waits again as a new one, waits briefly at first.
	now = now.Add(lastWait)
	w.due(now, 10)
	w.due(now, 10)
	w.add(with(1, locked), now)
	if got := w.next(now, time.Hour); got != firstWait {
		t.Errorf("the row that was settled is due in %s", got)
	}
}

func TestRowsSetAsideAreDueTogether(t *testing.T) {
	var w waitingRows
	now := time.Now()
	w.add(with(1, aside), now)
	w.add(with(2, aside), now.Add(time.Second))
	moved := with(3, aside)
	moved.Decision.Action = outbox.DeadLetter
	w.add(moved, now.Add(2*time.Second))
	w.add(settlementOf(4), now)
	if w.aside != 3 || w.undeleted != 2 {
		t.Errorf("%d rows are set aside, %d undeleted", w.aside, w.undeleted)
	}
	if got := w.setAside(); got.Rows != 3 || got.Published != 2 || len(got.First) != 3 || !slices.Equal(got.IDs, []int64{1, 2}) {
		t.Errorf("set aside: %+v", got)
	}
	if got := dueIDs(w.due(now.Add(asideWait-1), 10)); !slices.Equal(got, []int64{4}) {
		t.Errorf("due before: %v", got)
	}
	now = now.Add(asideWait)
	for _, want := range [][]int64{{1, 2}, {3}, nil} { // a batch of two each time
		rows := w.due(now, 2)
		if !slices.Equal(dueIDs(rows), want) {
			t.Fatalf("due: %v, want %v", dueIDs(rows), want)
		}
		for _, row := range rows {
			w.add(row, now)
		}
	}
	if w.aside != 3 || w.undeleted != 2 {
		t.Errorf("after another try, %d rows are set aside, %d undeleted", w.aside, w.undeleted)
	}
	if got := w.next(now, time.Hour); got != asideWait {
		t.Errorf("the next try is in %s", got)
	}
}
