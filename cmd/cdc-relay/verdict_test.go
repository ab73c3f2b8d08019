package main

import (
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// verdicts returns the sentences of stats, of /readyz?verbose, and of the console.
func verdicts(t *testing.T, env environment, relay, console string) (stats, readyz, browser string) {
	t.Helper()
	r := cdcRelay(t, env, "stats", "--format", "json", "--http-addr", strings.TrimPrefix(relay, "http://"))
	want(t, r, exitDone)
	var view struct {
		Verdict struct{ Text, Command string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &view); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(page(t, relay+"/readyz?verbose"), " ")
	readyz, _, _ = strings.Cut(text, "\n")
	_, body := fetch(t, http.MethodGet, console+"/waiting", nil)
	if found := regexp.MustCompile(`<div class="verdict \w+"><p><strong>(.*?)</strong>`).FindStringSubmatch(body); found != nil {
		browser = html.UnescapeString(found[1])
	}
	return view.Verdict.Text, readyz, browser
}

// keepRows makes every DELETE on the outbox fail.
func keepRows(exec func(sql string)) {
	exec(`CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'rows stay'; END $$`)
	exec(`CREATE TRIGGER kept BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION kept()`)
}

func TestTheVerdictIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	for _, state := range []struct {
		name string
		// before runs before the relay starts, after when it streams.
		before func(exec func(sql string))
		after  func(exec func(sql string), broker *services.Proxy)
		args   []string
		want   string // a pattern of the whole sentence
	}{
		{name: "healthy", want: `Healthy: \d+ messages/s(, p99 .*)?, leader 127\.0\.0\.1`},
		{
			name: "RabbitMQ is down",
			after: func(exec func(string), broker *services.Proxy) {
				broker.Refuse()
				broker.Cut()
				exec(`INSERT INTO outbox (routing_key, payload) VALUES ('orders.paid', '1')`)
			},
			want: `Critical: no message is published: .*connection.*; 1 message waits`,
		},
		{
			name: "a key is blocked",
			args: []string{"--max-retries", "9", "--backoff-time", "1h"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('orders.lost', '1', 'customer-7'),
					('orders.paid', '1', 'customer-7'), ('orders.paid', '1', 'customer-7')`)
			},
			want: `Needs attention: 2 messages of key customer-7 wait behind message 1 \(unroutable: .*\)`,
		},
		{
			name: "a dead letter blocks a key",
			args: []string{"--max-retries", "0", "--on-dead-letter", "block"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('orders.lost', '1', 'customer-7'),
					('orders.paid', '1', 'customer-7')`)
			},
			want: `Needs attention: 1 message of key customer-7 waits behind dead letter 1`,
		},
		{
			name: "many dead letters",
			args: []string{"--max-retries", "0"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.lost', '1' FROM generate_series(1, 11)`)
			},
			want: `Needs attention: 11 dead letters \(11 × orders\.lost, unroutable\)`,
		},
		{
			name:   "published rows cannot be deleted",
			before: keepRows,
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.paid', '1' FROM generate_series(1, 20)`)
			},
			want: `Critical: publishing stopped: rows of published messages cannot be deleted; \d+ rows set aside, .*`,
		},
		{
			name:   "one published row cannot be deleted",
			before: keepRows,
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) VALUES ('orders.paid', '1')`)
			},
			want: `Needs attention: rows cannot be deleted or updated: 1 rows set aside, with ids 1`,
		},
	} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			env, db := fresh(t)
			exec := func(sql string) { execute(t, db, sql) }
			vhost, err := url.Parse(services.VHost(t))
			if err != nil {
				t.Fatal(err)
			}
			channel, err := services.DialAMQP(t, vhost.String()).Channel()
			if err == nil {
				_, err = channel.QueueDeclare("orders.paid", false, false, false, false, amqp091.Table{})
			}
			if err != nil {
				t.Fatal(err)
			}
			broker := services.NewProxy(t, vhost.Host)
			vhost.Host = broker.Addr()
			env["CDC_RELAY_AMQP_URL"] = vhost.String()
			want(t, cdcRelay(t, env, "setup"), exitDone)
			if state.before != nil {
				state.before(exec)
			}
			run := start(t, env, append([]string{"run"}, state.args...)...)
			relay := run.httpURL(t)
			env["CDC_RELAY_HTTP_ADDR"] = strings.TrimPrefix(relay, "http://")
			_, console := startConsole(t, env)
			await.Until(t, "the relay streams", func() bool {
				return strings.HasPrefix(page(t, relay+"/readyz"), "200 ready (streaming)")
			})
			if state.after != nil {
				state.after(exec, broker)
			}
			wanted := regexp.MustCompile("^" + state.want + "$")
			var stats, readyz, browser string
			await.Until(t, "all say "+state.want, func() bool {
				stats, readyz, browser = verdicts(t, env, relay, console)
				t.Logf("stats: %s; readyz: %s; browser: %s", stats, readyz, browser)
				return wanted.MatchString(stats) && wanted.MatchString(readyz) && wanted.MatchString(browser)
			})
		})
	}
}
