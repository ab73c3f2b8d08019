package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	r := cdcRelay(t, env, "stats", "--json")
	want(t, r, exitDone)
	var view struct{ Verdict show.Verdict }
	must(t, json.Unmarshal([]byte(r.stdout), &view))
	_, readyz.page, _ = strings.Cut(page(t, relay+"/readyz?verbose"), " ")
	readyz.text, _, _ = strings.Cut(readyz.page, "\n")
	_, body := fetch(t, http.MethodGet, console+"/waiting", nil)
	browser.page = html.UnescapeString(body)
	if found := regexp.MustCompile(`<div class="verdict (\w+)">.*?<strong>(.*?)</strong>`).FindStringSubmatch(browser.page); found != nil {
		browser.level, browser.text = found[1], found[2]
	}
	return view.Verdict, readyz, browser
}

// firing are the alerts, with their severities, of a relay whose metrics change from before to now and then stay. It is
// false if there is no promtool: scripts/test installs it.
func firing(t *testing.T, before, now string) (alerts map[string]string, evaluated bool) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	rules, absolute := filepath.Abs("../../deploy/prometheus/rules.yaml")
	if err != nil || absolute != nil {
		return nil, false
	}
	sample := regexp.MustCompile(`(?m)^(cdc_relay_\w+)(?:\{(.*)\})? (\S+)$`)
	values := make(map[string][2]string)
	for i, text := range []string{before, now} {
		for _, found := range sample.FindAllStringSubmatch(text, -1) {
			series := fmt.Sprintf(`%s{job="shop",instance="a",%s}`, found[1], found[2])
			both := values[series]
			both[i] = found[3]
			values[series] = both
		}
	}
	test := "rule_files: [" + rules + "]\nevaluation_interval: 30s\ntests:\n- interval: 30s\n  input_series:\n"
	for series, both := range values {
		test += fmt.Sprintf("  - {series: '%s', values: '%sx10 %sx60'}\n", series, cmp.Or(both[0], "_"), cmp.Or(both[1], "_"))
	}
	test += "  promql_expr_test:\n  - {expr: 'ALERTS{alertstate=\"firing\"}', eval_time: 12m, exp_samples: [{labels: none, value: 1}]}\n"
	output, _ := exec.Command(promtool, "test", "rules", writeFile(t, "alerts.yaml", test)).CombinedOutput() //nolint:errcheck // it fails, and prints the alerts
	_, got, found := strings.Cut(string(output), "got:")
	if !found {
		t.Fatalf("%s", output)
	}
	alerts = make(map[string]string)
	for _, one := range regexp.MustCompile(`alertname=\\?"(\w+)\\?".*?severity=\\?"(\w+)\\?"`).FindAllStringSubmatch(got, -1) {
		alerts[one[1]] = one[2]
	}
	return alerts, true
}

func worst(alerts map[string]string) show.Level {
	severities := slices.Sorted(maps.Values(alerts))
	if len(severities) == 0 {
		return show.Healthy
	}
	return show.Level(severities[0]) // critical is before warning
}

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
		want   string              // a pattern of the whole sentence
		fix    string              // a pattern of the detail, the fix and the command
		alerts string              // their names
		says   map[string][]string // what other commands say
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
			fix:  `.*connection.*\|\|cdc-relay check`, alerts: "CdcRelayBrokerNotReady",
		},
		{
			name: "a key is blocked",
			args: []string{"--max-retries", "9", "--backoff-time", "1h"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('orders.lost', '1', 'customer-7'),
					('orders.paid', '1', 'customer-7'), ('orders.paid', '1', 'customer-7')`)
			},
			want: `Needs attention: 2 messages of key customer-7 wait behind message 1, which was rejected: .*queue.*`,
			fix:  `unroutable: .*\|.*queue.*\|cdc-relay explain 1`, alerts: "CdcRelayRejections",
		},
		{
			name: "a dead letter blocks a key",
			args: []string{"--max-retries", "0", "--on-dead-letter", "block"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('orders.lost', '1', 'customer-7'),
					('orders.paid', '1', 'customer-7')`)
			},
			want: `Needs attention: 1 message of key customer-7 waits behind dead letter 1`,
			fix:  `\|fix the cause.*\|cdc-relay explain 1`, alerts: "CdcRelayDeadLetters CdcRelayRejections",
		},
		{
			name: "many dead letters, with labels of their own",
			args: []string{"--max-retries", "0", "--metrics-header", "task", "--metrics-routing-keys", "orders.*"},
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.lost', '1' FROM generate_series(1, 11)`)
			},
			want: `Needs attention: 11 dead letters, because .*queue.* \(routing key orders\.lost\)`,
			fix:  `\|.*queue.*, then resend them\|cdc-relay list --state dead --reason unroutable`, alerts: "CdcRelayDeadLetters CdcRelayRejections",
		},
		{
			name:   "published rows cannot be deleted",
			before: keepRows,
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.paid', '1' FROM generate_series(1, 20)`)
			},
			want: `Critical: publishing has stopped: \d+ messages were published, and their rows cannot be deleted.*`,
			fix:  `.*rows stay.*\|ALTER TABLE public\.outbox DISABLE TRIGGER kept;\|cdc-relay check`, alerts: "CdcRelayPublishingStopped CdcRelayRowsSetAside",
			says: map[string][]string{"check": {"critical  relays    works ", ": publishing has stopped: ", " rows stay"}},
		},
		{
			name:   "one published row cannot be deleted",
			before: keepRows,
			after: func(exec func(string), _ *services.Proxy) {
				exec(`INSERT INTO outbox (routing_key, payload) VALUES ('orders.paid', '1')`)
			},
			want: `Needs attention: 1 message was published, and its row cannot be deleted; other messages are not affected`,
			fix:  `.*rows stay.*\|ALTER TABLE public\.outbox DISABLE TRIGGER kept;\|cdc-relay check`, alerts: "CdcRelayRowsSetAside",
			says: map[string][]string{
				"explain 1": {"not deleted", "rows stay", "ALTER TABLE public.outbox DISABLE TRIGGER kept;"},
				"list":      {"not deleted"}, "list --state not_deleted --json": {`"state": "not_deleted"`},
				"stats --json": {`"not_deleted": 1`, `"waiting": 0`, `"oldest_pending_seconds": 0`}, "stats": {"not deleted"},
			},
		},
	} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			env, db := fresh(t)
			exec := func(sql string) { execute(t, db, sql) }
			vhost, err := url.Parse(services.VHost(t))
			must(t, err)
			_, err = connectToBroker(t, vhost.String()).QueueDeclare("orders.paid", false, false, false, false, amqp091.Table{})
			must(t, err)
			broker := services.NewProxy(t, vhost.Host)
			vhost.Host = broker.Addr()
			env["CDC_RELAY_AMQP_URL"] = vhost.String()
			want(t, cdcRelay(t, env, "setup"), exitDone)
			if state.before != nil {
				state.before(exec)
			}
			run := start(t, env, append([]string{"run"}, state.args...)...)
			relay := run.httpURL(t)
			_, console := startConsole(t, env)
			await.Until(t, "the relay streams", func() bool {
				return strings.HasPrefix(page(t, relay+"/readyz"), "200 ready (streaming)")
			})
			before := page(t, relay+"/metrics")
			if state.after != nil {
				state.after(exec, broker)
			}
			wanted, fix := regexp.MustCompile("^"+state.want+"$"), regexp.MustCompile("^"+state.fix+"$")
			var level show.Level
			await.Until(t, "all say "+state.want, func() bool {
				stats, readyz, browser := verdicts(t, env, relay, console)
				t.Logf("stats: %+v; readyz: %s; browser: %s %s", stats, readyz.text, browser.level, browser.text)
				level = stats.Level
				for _, part := range []string{stats.Detail, stats.Fix, stats.Command} {
					if part != "" && (!strings.Contains(readyz.page, part) || !strings.Contains(browser.page, part)) {
						return false
					}
				}
				return wanted.MatchString(stats.Text) && wanted.MatchString(readyz.text) && wanted.MatchString(browser.text) &&
					browser.level == string(stats.Level) && fix.MatchString(strings.Join([]string{stats.Detail, stats.Fix, stats.Command}, "|"))
			})
			for command, texts := range state.says {
				wantTexts(t, cdcRelay(t, env, strings.Fields(command)...).stdout, texts...)
			}
			if r := cdcRelay(t, env, "stats", "--exit-code"); r.code != map[show.Level]int{show.Warning: exitWarning, show.Critical: exitCritical}[level] {
				t.Errorf("the exit code of stats is %d for %s", r.code, level)
			}
			alerts, evaluated := firing(t, before, page(t, relay+"/metrics"))
			names := strings.Join(slices.Sorted(maps.Keys(alerts)), " ")
			if evaluated && (names != state.alerts || worst(alerts) != level) {
				t.Errorf("the verdict is %s, the alerts are %v, want %s", level, alerts, state.alerts)
			}
		})
	}
}
