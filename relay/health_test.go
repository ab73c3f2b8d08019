package relay

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/stdout"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// unconnected returns a relay with a ready publisher and a window of two messages.
func unconnected(t *testing.T) *Relay {
	t.Helper()
	config := DefaultConfig()
	config.DatabaseURL, config.Mode, config.MaxInFlight = "postgres://localhost/none", ModePoll, 2
	r, err := New(config, stdout.New(stdout.Config{}), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	t.Cleanup(r.Close)
	r.StateChanged(publish.State{Phase: publish.Ready})
	return r
}

// A restart of the process brings no server back.
func TestARelayThatCannotReachPostgresIsLive(t *testing.T) {
	r := unconnected(t)
	r.leader.alive.beatFor(-2 * stuckAfter)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.leader.run(ctx) }()
	await.Until(t, "the leader tries to connect", func() bool { return r.leader.alive.age() < stuckAfter })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A busy relay has a full window too, but messages leave it.
func TestARelayIsNotReadyIfUndeletedRowsFillTheWindow(t *testing.T) {
	r := unconnected(t)
	r.phase.Store(phaseRunning)
	now := time.Now()
	r.core.Clock = func() time.Time { return now }
	r.core.BeginTerm(core.Lead{})
	r.core.StreamLive(true)
	later := func(d time.Duration) {
		now = now.Add(d)
		r.core.Owned(now)
	}
	stream := func(id int64) *outbox.Message {
		m := &outbox.Message{Row: outbox.Row{ID: id}, XID: 1}
		r.core.Streamed(m, 1, false)
		return m
	}
	confirm := func(m *outbox.Message) outbox.Settlement {
		out, _ := r.core.Resolved(outbox.Result{Message: m, Outcome: outbox.Confirmed})
		return out.Settle[0]
	}
	is := func(want bool, when string) {
		t.Helper()
		if h := r.Health(); h.Ready != want {
			t.Errorf("ready %v %s: %+v", h.Ready, when, h.Parts)
		}
	}
	later(0)
	waits, busy := confirm(stream(1)), confirm(stream(2))
	r.settler.waits.Store(1)
	stream(3)
	later(slowAfter / 2)
	is(true, "with a window that has just become full")
	for id := range int64(5) {
		later(slowAfter / 2)
		r.core.Settled([]outbox.Settlement{busy})
		busy = confirm(stream(10 + id))
		stream(20)
	}
	is(true, "while messages leave")
	later(2 * slowAfter)
	is(false, "with no message that leaves")
	r.core.Settled([]outbox.Settlement{waits})
	is(true, "with room")
}

// The sweeper has ended then, and sends no heartbeat.
func TestARelayIsHealthyDuringALongShutdown(t *testing.T) {
	r := unconnected(t)
	r.core.BeginTerm(core.Lead{})
	r.sweeping.last.Store(time.Now().Add(-2 * stuckAfter).UnixNano())
	r.phase.Store(phaseRunning)
	if h := r.Health(); h.Live || h.Ready {
		t.Errorf("healthy with a stuck sweep: %+v", h)
	}
	r.phase.Store(phaseStopping)
	if h := r.Health(); !h.Live || !h.Ready {
		t.Errorf("unhealthy during a shutdown: %+v", h)
	}
}

func TestAStreamThatLagsIsReportedUntilItCatchesUp(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	s := &streamer{names: provision.Names{Table: tabletest.Name(), Slot: "s"}, log: logger, progress: streamProgress{behind: newOutageLog(logger, pgdial.Address{})}}
	said := func() string {
		defer log.Reset()
		return log.String()
	}
	s.lags(true, 1, 2)
	if text := said(); text != "" {
		t.Errorf("while the server reads older WAL: %s", text)
	}
	s.lags(false, 2, 2)
	s.progress.caughtUp.Store(true)
	for range 3 {
		s.lags(true, 0x10, 0x20)
	}
	text := said()
	if strings.Count(text, "\n") != 1 {
		t.Errorf("want one line:\n%s", text)
	}
	for _, want := range []string{"event=stream_lagging", "0/10", "0/20", "hint=\"cdc-relay check "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	s.lags(false, 0x30, 0x20)
	if text := said(); strings.Count(text, "event=stream_caught_up") != 1 || !strings.Contains(text, "after=") {
		t.Errorf("after it caught up: %s", text)
	}
}

// The stream is then silent, as if nobody wrote.
func TestAChangedPublicationIsRepaired(t *testing.T) {
	t.Parallel()
	i := newInstance(t)
	r, stop := i.start()
	defer stop()
	name := i.config.Names().Publication
	for _, change := range []string{
		`ALTER PUBLICATION %s SET (publish = 'delete')`, `ALTER PUBLICATION %s SET TABLE outbox_dead_letter`, `DROP PUBLICATION %s`,
	} {
		i.await("the relay streams", func() bool { return r.Health().Role == "streaming" })
		i.exec(fmt.Sprintf(change, name))
		i.await("the publication is repaired after "+change, func() (repaired bool) {
			must(t, i.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_publication_tables t JOIN pg_publication p USING (pubname)
				WHERE pubname = $1 AND tablename = 'outbox' AND pubinsert)`, name).Scan(&repaired))
			return repaired
		})
	}
}

// A promoted standby lacks the last transactions, and its transaction ids are far behind. Messages in flight then leave
// the memory, although no snapshot of the new server knows their transactions.
func TestNothingOfALostServerStaysInMemory(t *testing.T) {
	primary := services.PrivatePostgres(t)
	conn := tabletest.Connect(t, primary.URL("postgres"))
	if _, _, err := migrations.Up(t.Context(), conn, tabletest.Name()); err != nil {
		t.Fatal(err)
	}
	// It promotes itself at the restore point, so it lacks all that follows.
	standby, err := primary.StartStandby(t.Context(), "recovery_target_name=lost", "recovery_target_action=promote")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = standby.Close(context.Background()) })
	second := tabletest.Connect(t, standby.URL("postgres"))
	onStandby := func(what, sql string) {
		t.Helper()
		await.Until(t, what, func() (yes bool) {
			must(t, second.QueryRow(t.Context(), sql).Scan(&yes))
			return yes
		})
	}
	onStandby("the standby has the table", `SELECT to_regclass('outbox') IS NOT NULL`)
	both, err := url.Parse(primary.URL("postgres"))
	must(t, err)
	both.Host += "," + standby.Addr()
	both.RawQuery += "&target_session_attrs=read-write"

	const lost = 20
	i := &instance{t: t, config: DefaultConfig()}
	i.config.DatabaseURL, i.config.Slot, i.config.MaxInFlight = both.String(), services.Name(t), lost
	sent, confirm := make(chan struct{}, 1), make(chan struct{})
	publisher := outboxtest.NewPublisher(func(*outbox.Message) outbox.Result {
		select {
		case sent <- struct{}{}:
		default:
		}
		<-confirm
		return outbox.Result{}
	})
	r, stop := i.startWith(publisher, prometheus.NewRegistry())
	await.Until(t, "the relay streams", func() bool { v := r.core.View(); return v.Live && !v.Unlisted })
	tabletest.Run(t, conn, `SELECT pg_create_restore_point('lost')`)
	onStandby("the standby is promoted", `SELECT NOT pg_is_in_recovery()`)
	err = primary.Exec(t.Context(), "postgres",
		`DO 'BEGIN FOR n IN 1..1000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END'`,
		`DO $$BEGIN FOR n IN 1..20 LOOP INSERT INTO outbox (routing_key, payload, ordering_key)
			VALUES ('lost', '1', CASE WHEN n % 2 = 0 THEN n::text END); COMMIT; END LOOP; END$$`)
	must(t, err)
	await.Until(t, "the window is full", func() bool { return r.core.View().InFlight == lost })
	<-sent
	must(t, primary.Kill(t.Context()))
	await.Until(t, "the relay streams from the new server", func() bool { return r.Health().Role == "streaming" && r.core.View().Leader })
	close(confirm)
	await.Until(t, "no message stays in memory", func() bool { return r.core.View().Remembered == 0 })
	tabletest.Run(t, second, `INSERT INTO outbox (routing_key, payload) VALUES ('new', '1')`)
	await.Until(t, "a new message arrives", func() bool {
		all := publisher.Messages()
		return len(all) > lost && all[len(all)-1].RoutingKey == "new"
	})
	began := time.Now()
	stop()
	if took := time.Since(began); took > i.config.ShutdownTimeout {
		t.Errorf("the stop took %s", took)
	}
}
