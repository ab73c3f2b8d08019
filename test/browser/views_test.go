package browser

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// view is a verdict as one of the views has it. Cure is the lines below the sentence: the server's text, the cure, the
// command.
type view struct {
	Level, Text  string
	Cure, Others []string
}

// parsed reads the text that stats and /readyz?verbose begin with.
func parsed(text string) (v view) {
	text, _, _ = strings.Cut(text, "\n\n")
	for i, line := range strings.Split(text, "\n") {
		cure, isCure := strings.CutPrefix(line, "  ")
		other, isOther := strings.CutPrefix(line, "also: ")
		switch {
		case i == 0:
			word, _, _ := strings.Cut(line, ":")
			v.Level = map[string]string{"Healthy": "ok", "Needs attention": "warning", "Critical": "critical"}[word]
			v.Text = line
		case isCure:
			v.Cure = append(v.Cure, cure)
		case isOther:
			v.Others = append(v.Others, other)
		}
	}
	return v
}

// stats is what the test reads from stats --json.
type stats struct {
	Verdict struct {
		Level, Text, Detail, Fix, Command string
		Others                            []string
	}
	TopFailing []struct {
		Reason, Exchange string
		RoutingKeys      int64 `json:"routing_keys"`
		Dead, Retrying   int64
	} `json:"top_failing"`
}

// stats runs cdc-relay stats --json.
func (s *site) stats(args ...string) (found stats) {
	s.Helper()
	must(s, json.Unmarshal([]byte(s.run(append([]string{"stats", "--json"}, args...)...)), &found))
	return found
}

// onPage reads the verdict from the page, which updates by itself.
const onPage = `(() => { const v = document.querySelector(".verdict"), text = (e) => e.textContent.trim();
	return v === null ? {} : { Level: v.className.replace("verdict ", ""), Text: text(v.querySelector("strong")),
		Cure: [...v.querySelectorAll("p:not(:has(strong, code)), code")].map((e) => text(e).replace("To fix it: ", "")),
		Others: [...v.querySelectorAll("li")].map(text) }; })()`

// views reads stats in both forms, the page, and /readyz?verbose if a relay answers.
func (s *site) views() (map[string]view, stats) {
	s.Helper()
	found := s.stats()
	v := found.Verdict
	all := map[string]view{
		"stats --json": {v.Level, v.Text, slices.DeleteFunc([]string{v.Detail, v.Fix, v.Command}, func(s string) bool { return s == "" }), v.Others},
		"stats":        parsed(s.run("stats")),
		"the page":     get(s, chromedp.Evaluate[view](onPage)),
	}
	if s.relays {
		answer, err := http.Get("http://" + s.address + "/readyz?verbose")
		must(s, err)
		body, err := io.ReadAll(answer.Body)
		must(s, errors.Join(err, answer.Body.Close()))
		all["/readyz?verbose"] = parsed(string(body))
	}
	return all, found
}

// moves are rates, times, ports, and the length of a backlog that drains: they differ between two readings.
var moves = regexp.MustCompile(`(\d[\d,.]*(ms|[smhd]))+|[\d,.]+( ms| messages/s|/s)|[\d,]+ messages wait|(\d+\.){3}\d+:\d+`)

// still returns the level, the sentence, the cure and the others, without what moves.
func (v view) still() string {
	return moves.ReplaceAllString(fmt.Sprintf("%s: %s\n%s\nalso: %s", v.Level, v.Text, strings.Join(v.Cure, "\n"), strings.Join(v.Others, "\n")), "#")
}

// say waits until all views say the same, at this level, with these patterns in the sentence and the cure.
func (s *site) say(level, sentence, cure string) stats {
	s.Helper()
	began := time.Now()
	for reading := 1; ; reading++ {
		all, found := s.views()
		var wrong []string
		first := all["stats"]
		for name, v := range all {
			if v.still() != first.still() {
				wrong = append(wrong, name+" differs")
			}
			if bad := regexp.MustCompile(`\b1 (rows|messages|dead letters)\b|…`).FindString(v.Text + strings.Join(append(v.Cure, v.Others...), "\n")); bad != "" {
				wrong = append(wrong, name+" says "+bad)
			}
		}
		for what, is := range map[string]bool{
			"the level is not " + level:       first.Level == level,
			"the sentence is not " + sentence: regexp.MustCompile(sentence).MatchString(first.Text),
			"the cure is not " + cure:         regexp.MustCompile(cure).MatchString(strings.Join(first.Cure, "\n")),
		} {
			if !is {
				wrong = append(wrong, what)
			}
		}
		if len(wrong) == 0 {
			s.Logf("%q", first)
			return found
		}
		if reading >= 15 && time.Since(began) > time.Minute/2 { // the page has a sample every few seconds
			s.Errorf("%s\n%q", strings.Join(wrong, "\n"), all)
			return found
		}
	}
}

// In each state all views say the same, and what to do about it.
func TestTheViewsAgree(t *testing.T) {
	window := &site{T: t}
	window.startBrowser()
	insert := func(s *site, values string) {
		s.exec(`INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ` + values)
	}
	for _, state := range []struct {
		name string
		// args are those of the relay; nil: none runs yet. Private is a Postgres server of its own.
		args    []string
		private bool
		show    func(s *site)
	}{
		{"the only relay hangs", nil, true, func(s *site) {
			services.Thorough(s, "waits until the relay has told nothing for 15 seconds")
			process := s.relay()
			s.say("ok", "^Healthy", "^$")
			must(s, process.Signal(syscall.SIGSTOP))
			s.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
			s.relays = false
			insert(s, `('orders.paid', '1', NULL)`)
			s.say("critical", "no relay answers: relay .* was last seen .* ago; 1 message waits", "restart it")
		}},
		{"1,000 dead letters of three causes", []string{"--max-retries", "0"}, false, func(s *site) {
			s.exec(`INSERT INTO outbox (exchange, routing_key, payload, expires_at) VALUES ('shop', 'k1', '1', NULL), (NULL, 'orders.lost', '1', NULL),
				(NULL, 'orders.paid', '1', now() - interval '1 hour')`)
			await.Until(s, "three dead letters", func() bool { return s.count(`SELECT count(*)::int FROM outbox_dead_letter`) == 3 })
			s.exec(`INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, exchange, routing_key, payload, failure_reason, last_error, expires_at)
				SELECT -1000 * id - i, created_at, gen_random_uuid(), attempts, schema_version, exchange, CASE exchange WHEN 'shop' THEN 'k' || i ELSE routing_key END,
					payload, failure_reason, last_error, expires_at
				FROM outbox_dead_letter, generate_series(2, CASE WHEN exchange = 'shop' THEN 350 WHEN routing_key = 'orders.lost' THEN 340 ELSE 310 END) i`)
			found := s.say("warning", `^Needs attention: 1,000 dead letters: 350 because .*exchange.*350 routing keys\); 340 because .*queue.*; 310 because .*expire`,
				`exchange.*\n.*cdc-relay list --state dead`)
			s.groups(found, "/dead-letters", 350, 340, 310)
		}},
		{"690 retries of two causes", []string{"--backoff-time", "1h"}, false, func(s *site) {
			s.exec(`INSERT INTO outbox (exchange, routing_key, payload) VALUES ('shop', 'k1', '1'), (NULL, 'orders.lost', '1')`)
			await.Until(s, "two retries", func() bool { return s.count(`SELECT count(*)::int FROM outbox WHERE attempts = 1`) == 2 })
			s.exec(`INSERT INTO outbox (exchange, routing_key, payload, attempts, last_error, available_at)
				SELECT exchange, CASE exchange WHEN 'shop' THEN 'k' || i ELSE routing_key END, payload, attempts, last_error, available_at
				FROM outbox, generate_series(2, CASE exchange WHEN 'shop' THEN 350 ELSE 340 END) i`)
			found := s.say("warning", `^Needs attention: 690 rejected messages will be tried again: 350 because .*exchange.*350 routing keys\); 340 because .*queue`,
				`exchange.*\n.*cdc-relay list --state retrying`)
			s.groups(found, "/waiting?state=retrying", 350, 340)
		}},
		{"200,000 rows wait", nil, false, func(s *site) {
			s.exec(`INSERT INTO outbox (routing_key, payload) SELECT 'orders.paid', '1' FROM generate_series(1, 200000)`)
			s.exec(`ANALYZE outbox`)
			s.say("critical", `^Critical: no relay tells that it runs; .*messages wait`, "cdc-relay run$")
			s.broker.Delay(20 * time.Millisecond) // at most 5,000/s
			s.relay("--max-in-flight", "100")
			s.say("warning", `^Needs attention: [\d,]+ messages wait`, "cdc-relay stats --watch$")
		}},
		{"an old backlog drains", nil, false, func(s *site) { // critical, as is the alert
			s.exec(`INSERT INTO outbox (routing_key, payload, created_at) SELECT 'orders.paid', '1', now() - interval '10 minutes' FROM generate_series(1, 50000)`)
			s.broker.Delay(100 * time.Millisecond)
			s.relay("--max-in-flight", "100")
			s.say("critical", `the oldest message has waited for 1\dm\d+s`, "cdc-relay list$")
		}},
		{"the slot is recreated", []string{}, true, func(s *site) {
			old, err := pgx.ConnectConfig(s.Context(), s.db.Config())
			must(s, err)
			if _, err := old.Exec(s.Context(), `BEGIN; SELECT txid_current()`); err != nil {
				s.Fatal(err)
			}
			await.Until(s, "the slot is gone", func() bool {
				s.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active`)
				_, err := s.db.Exec(s.Context(), `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`)
				return err == nil
			})
			insert(s, `('orders.paid', '1', NULL)`)
			await.Until(s, "messages flow", func() bool { return s.count(`SELECT count(*)::int FROM outbox`) == 0 })
			await.Until(s, "its creation waits", func() bool {
				return s.count(`SELECT count(*)::int FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'virtualxid')`) > 0
			})
			s.say("warning", "^Needs attention: no relay streams", "cdc-relay check$")
			must(s, old.Close(s.Context()))
			s.say("ok", "^Healthy", "^$")
		}},
		{"a scheduled message is on time", []string{}, false, func(s *site) {
			s.exec(`INSERT INTO outbox (routing_key, payload, created_at, available_at) VALUES ('orders.paid', '1', now() - interval '1 hour', now() + interval '5 seconds')`)
			s.exec(`BEGIN`)
			if s.count(`SELECT count(*)::int FROM (SELECT FROM outbox WHERE available_at > clock_timestamp() FOR UPDATE) held`) != 1 {
				s.Fatal("it was published before")
			}
			await.Until(s, "it is due", func() bool {
				return s.count(`SELECT count(*)::int FROM outbox WHERE available_at < clock_timestamp()`) == 1
			})
			s.say("ok", "^Healthy", "^$")
			s.exec(`COMMIT`)
		}},
	} {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			var database string
			if state.private {
				database = services.PrivatePostgres(t, "wal_sender_timeout=2s").Database(t)
			} else {
				database = services.Database(t)
			}
			s := prepare(t, database, true)
			s.queues()
			if state.args != nil {
				s.relay(state.args...)
			}
			s.url, _ = s.start("console", "--console-listen", "127.0.0.1:0")
			tab, closeTab := chromedp.NewContext(window.browser)
			s.browser = tab
			t.Cleanup(closeTab)
			s.do(chromedp.Navigate(s.url + "/"))
			state.show(s)
		})
	}
}

// groups compares the causes, the largest first: in JSON, in the text of stats, and on the page with the messages.
func (s *site) groups(found stats, path string, want ...int64) {
	s.Helper()
	text := s.run("stats")
	s.do(chromedp.Navigate(s.url+path), chromedp.WaitVisible(".groups"))
	page := get(s, chromedp.Evaluate[[]string](`[...document.querySelectorAll(".groups .sum")].map((e) => e.textContent)`))
	if len(page) != len(want) || len(found.TopFailing) != len(want) {
		s.Fatalf("the groups are %v and %q", found.TopFailing, page)
	}
	for i, g := range found.TopFailing {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^%s .* %d +%d `, g.Reason, g.Retrying, g.Dead))
		if n := g.Retrying + g.Dead; n != want[i] || !row.MatchString(text) || !strings.Contains(page[i], fmt.Sprintf("%d × %s", n, g.Reason)) {
			s.Errorf("%+v, %q\n%s", g, page[i], text)
		}
	}
	if first := found.TopFailing[0]; first.Exchange != "shop" || first.RoutingKeys != 350 {
		s.Errorf("the first group is %+v", first)
	}
}
