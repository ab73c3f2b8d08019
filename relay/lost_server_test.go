package relay

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

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
