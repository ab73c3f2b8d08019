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

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// judged is a verdict as one view has it.
type judged struct {
	level, text string
	// page is the whole page, without escapes.
	page string
}

// verdicts returns those of stats, of /readyz?verbose, and of the console.
func verdicts(t *testing.T, env environment, relay, console string) (stats show.Verdict, readyz, browser judged) {
	t.Helper()
	r := cdcRelay(t, env, "stats", "--format", "json", "--http-addr", strings.TrimPrefix(relay, "http://"))
	want(t, r, exitDone)
	var view struct{ Verdict show.Verdict }
	if err := json.Unmarshal([]byte(r.stdout), &view); err != nil {
		t.Fatal(err)
	}
	_, readyz.page, _ = strings.Cut(page(t, relay+"/readyz?verbose"), " ")
	readyz.text, _, _ = strings.Cut(readyz.page, "\n")
	_, body := fetch(t, http.MethodGet, console+"/waiting", nil)
	browser.page = html.UnescapeString(body)
	if found := regexp.MustCompile(`<div class="verdict (\w+)"><p><strong>(.*?)</strong>`).FindStringSubmatch(browser.page); found != nil {
		browser.level, browser.text = found[1], found[2]
	}
	return view.Verdict, readyz, browser
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
		fix    string // a pattern of the detail, the fix and the command
	}{
		{name: "healthy", want: `Healthy: \d+ messages/s(, p99 .*)?, leader 127\.0\.0\.1`, fix: `\|\|`},
		{
			name: "RabbitMQ is down",
			after: func(exec func(string), broker *services.Proxy) {
				broker.Refuse()
				broker.Cut()
				exec(`INSERT INTO outbox (routing_key, payload) VALUES ('orders.paid', '1')`)
			},
			want: `Critical: no message is published: the publisher .*; 1 message waits`,
			fix:  `.*connection.*\|\|cdc-relay check`,
		},
		{
			name: "a key is blocked",
			args: []string{"--max-retries", "9", "--backoff-time", "1h"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('orders.lost', '1', 'customer-7'),
					('orders.paid', '1', 'customer-7'), ('orders.paid', '1', 'customer-7')`)
			},
			want: `Needs attention: 2 messages of key customer-7 wait behind message 1, which was rejected: .*queue.*`,
			fix:  `unroutable: .*\|.*queue.*\|cdc-relay explain 1`,
		},
		{
			name: "a dead letter blocks a key",
			args: []string{"--max-retries", "0", "--on-dead-letter", "block"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('orders.lost', '1', 'customer-7'),
					('orders.paid', '1', 'customer-7')`)
			},
			want: `Needs attention: 1 message of key customer-7 waits behind dead letter 1`,
			fix:  `\|fix the cause.*\|cdc-relay explain 1`,
		},
		{
			name: "many dead letters",
			args: []string{"--max-retries", "0"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.lost', '1' FROM generate_series(1, 11)`)
			},
			want: `Needs attention: 11 dead letters: because .*queue.* \(routing key orders\.lost\)`,
			fix:  `\|.*queue.*, then resend them\|cdc-relay list --state dead --reason unroutable`,
		},
		{
			name:   "published rows cannot be deleted",
			before: keepRows,
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.paid', '1' FROM generate_series(1, 20)`)
			},
			want: `Critical: publishing has stopped: \d+ messages were published, and their rows cannot be deleted.*`,
			fix:  `.*rows stay.*\|ALTER TABLE public\.outbox DISABLE TRIGGER kept;\|cdc-relay check`,
		},
		{
			name:   "one published row cannot be deleted",
			before: keepRows,
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) VALUES ('orders.paid', '1')`)
			},
			want: `Needs attention: 1 message was published, and its row cannot be deleted; other messages are not affected`,
			fix:  `.*rows stay.*\|ALTER TABLE public\.outbox DISABLE TRIGGER kept;\|cdc-relay check`,
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
			wanted, fix := regexp.MustCompile("^"+state.want+"$"), regexp.MustCompile("^"+state.fix+"$")
			await.Until(t, "all say "+state.want, func() bool {
				stats, readyz, browser := verdicts(t, env, relay, console)
				t.Logf("stats: %+v; readyz: %s; browser: %s %s", stats, readyz.text, browser.level, browser.text)
				for _, part := range []string{stats.Detail, stats.Fix, stats.Command} {
					if part != "" && (!strings.Contains(readyz.page, part) || !strings.Contains(browser.page, part)) {
						return false
					}
				}
				return wanted.MatchString(stats.Text) && wanted.MatchString(readyz.text) && wanted.MatchString(browser.text) &&
					browser.level == string(stats.Level) && fix.MatchString(strings.Join([]string{stats.Detail, stats.Fix, stats.Command}, "|"))
			})
		})
	}
}
