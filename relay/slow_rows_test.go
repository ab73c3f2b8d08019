package relay

import (
	"net/url"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Rows that need an answer of their own from a distant broker have a share of the window. They come first, and many of
// them still wait when all others have arrived. No attempt is charged for the wait.
func TestRowsInASlowLaneDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]string{
		"missing exchanges":        `'missing ' || n, 'k', to_json(n), NULL, NULL, NULL`,
		"missing exchanges, large": `'missing ' || n, 'k', to_json(repeat('x', 50000)), NULL, NULL, NULL`,
		"missing exchanges, keyed": `'missing ' || n, 'k', to_json(n), 'slow ' || n, NULL, NULL`,
		"a foreign user_id":        `'', 'nowhere', to_json(n), NULL, NULL, '{"user_id": "somebody-else"}'`,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "missing exchanges" {
				services.Thorough(t, "the other kinds go the same way")
			}
			t.Parallel()
			i := newInstance(t)
			i.config.BackoffTime, i.config.MaxBackoff = time.Hour, time.Hour
			i.config.MaxInFlight = 400
			direct, err := url.Parse(i.amqp)
			must(t, err)
			proxy := services.NewProxy(t, direct.Host)
			direct.Host = proxy.Addr()
			i.amqp = direct.String()
			r, stop := i.start()
			i.await("the relay streams", func() bool { return r.Health().Role == "streaming" })
			proxy.Delay(50*time.Millisecond, services.Upstream, services.Downstream)
			const slow, others = 2000, 20
			if _, err := i.db.Exec(t.Context(), `INSERT INTO outbox (exchange, routing_key, payload, ordering_key, headers, properties)
				SELECT `+row+` FROM generate_series(1, $1) n`, slow); err != nil {
				t.Fatal(err)
			}
			must(t, i.load(1, others))
			i.await("the others arrive", func() bool { return i.arrived() == others })
			var waiting int
			must(t, i.db.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE attempts = 0 AND routing_key <> $1`, i.queue).Scan(&waiting))
			if waiting < slow/2 {
				t.Errorf("%d of %d slow rows wait when the others have arrived, want most", waiting, slow)
			}
			proxy.Delay(0)
			stop()
		})
	}
}
