package main

import (
	"encoding/json"
	"html"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// All tasks of a Celery queue have one routing key. The setting comes from the environment, as that of all commands.
func TestTasksOfOneQueueAreToldApart(t *testing.T) {
	t.Parallel()
	env, db := fresh(t)
	env["CDC_RELAY_AMQP_URL"], env["CDC_RELAY_METRICS_HEADER"] = services.VHost(t), "task"
	arrived := arrivals(t, env["CDC_RELAY_AMQP_URL"], "celery", "")
	want(t, cdcRelay(t, env, "setup"), exitDone)
	relay := start(t, env, "run", "--max-retries", "1", "--backoff-time", "0s", "--poll-interval", "100ms")
	live := show.NewLiveRelay(strings.TrimPrefix(relay.httpURL(t), "http://"))
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) SELECT key, '1', headers FROM (VALUES
		('celery', '{"id": "1", "task": "orders.send", "argsrepr": "(\"task\": \"no\")"}'::jsonb), ('celery', '{"task": "orders.send"}'), ('celery', '{"task": "mails.send"}'),
		('celery', NULL), ('gone', '{"task": "orders.send"}'), ('gone', '{"task": "orders.send"}'), ('gone', '{"task": "orders.tasks.pay"}'),
		('gone', '{"task": "evil\"\n\u001b[31m<b>"}'), ('gone', jsonb_build_object('task', repeat('x', 10000)))) v(key, headers)`)
	for range 4 {
		await.Receive(t, "a message arrives", arrived)
	}
	series := func(name string) map[string]int { return countsBy(t, live, name, "task") }
	dead := map[string]int{"orders.send": 2, "orders.tasks.pay": 1, `evil"??[31m<b>`: 1, "other": 1}
	await.Until(t, "all dead letters are counted", func() bool { return maps.Equal(series("cdc_relay_messages_dead_lettered_total"), dead) }, func() string {
		text, _ := json.Marshal(series("cdc_relay_messages_dead_lettered_total"))
		return string(text)
	})
	if got := series("cdc_relay_messages_published_total"); !maps.Equal(got, map[string]int{"orders.send": 2, "mails.send": 1, "": 1}) {
		t.Errorf("published: %v", got)
	}
	if got := series("cdc_relay_messages_refused_total"); got["orders.send"] != 4 {
		t.Errorf("rejected: %v", got)
	}
	relay.stopsWell(t)

	wantOutput(t, cdcRelay(t, env, "stats"), "(routing key gone, orders.send)", "ROUTING KEY  TASK ", "gone         orders.send ", `evil"\n\x1b[31m<b>`, "xxxxx…")
	var stats struct {
		TopFailing []struct{ Header *string } `json:"top_failing"`
	}
	if r := cdcRelay(t, env, "stats", "--json"); json.Unmarshal([]byte(r.stdout), &stats) != nil || len(stats.TopFailing) != 4 || *stats.TopFailing[0].Header != "orders.send" {
		t.Errorf("got %s%s", r.stdout, r.stderr)
	}
	if r := cdcRelay(t, env, "stats", "--metrics-header", "", "--json"); !strings.Contains(r.stdout, `"header": null`) || strings.Contains(r.stdout, "orders.send") {
		t.Errorf("without a header: %s%s", r.stdout, r.stderr)
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "dead", "--header", "task=#.pay"), "ROUTING KEY  TASK              ORDERING KEY", "gone         orders.tasks.pay  -")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) VALUES ('later', '1', '{"task": 17}'), ('later', '1', '{"task": ["a"]}')`)
	wantOutput(t, cdcRelay(t, env, "list"), "ROUTING KEY  TASK  ORDERING KEY", "later        17    -", "later        -     -")
	wantOutput(t, cdcRelay(t, env, "list", "--metrics-header", ""), "ROUTING KEY  ORDERING KEY", "later        -")
	wantOutput(t, cdcRelay(t, env, "resend", "--state", "dead", "--header", "task=orders.#", "--dry-run"), "3 dead letters")
	wantOutput(t, cdcRelay(t, env, "delete", "--state", "dead", "--header", "task=orders.send", "--header", "id=#", "--dry-run"), "0 dead letters")
}

func TestHeadersThatMakeNoLabelAreRejected(t *testing.T) {
	env, _ := fresh(t)
	env["CDC_RELAY_PUBLISHER"] = "stdout"
	for header, says := range map[string]string{
		"routing_key": "the label routing_key has another meaning", "routing-key": "the label routing_key has another meaning", "-": "want a letter or a digit",
		"a\nb": "want printable characters", strings.Repeat("x", 10_000): "want at most 255 bytes", "argsrepr": "repeats the body",
	} {
		for _, command := range [][]string{{"run"}, {"drain"}, {"stats"}, {"console"}, {"config", "validate"}} {
			r := cdcRelay(t, env, append(command, "--metrics-header", header)...)
			if want(t, r, exitUsage); !strings.Contains(r.stderr, says) || len(r.stderr) > 1000 {
				t.Errorf("%v %.50q: %s", command, header, r.stderr)
			}
		}
	}
	for _, flag := range []string{"--header-columns", "--ordering-key-header"} {
		if r := cdcRelay(t, env, "run", flag, "tenant", "--metrics-header", "tenant"); r.code != exitUsage || !strings.Contains(r.stderr, "another column") {
			t.Errorf("%s: exit code %d, %s", flag, r.code, r.stderr)
		}
	}
	for _, filter := range []string{"", "task", "=x", "argsrepr=*"} {
		want(t, cdcRelay(t, env, "list", "--header", filter), exitUsage)
	}
}

// A link to a failure shows the dead letters that it counts.
func TestConsoleGroupsFailuresByAHeader(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	tasks := []string{"orders.send", "a,b", ",", "*", "#", `"<b>&=%_\ü`, " lead", "'quoted'", "\x1b[31m\n"}
	for _, task := range tasks {
		execute(t, db, `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, headers, failure_reason)
			VALUES (70, now(), gen_random_uuid(), 6, 1, 'celery', jsonb_build_object('task', $1::text), 'nack')`, task)
	}
	execute(t, db, `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason)
		VALUES (71, now(), gen_random_uuid(), 6, 1, 'celery', 'nack')`)
	_, at := startConsole(t, env, "--metrics-header", "task", "--allow-changes")
	link := regexp.MustCompile(`href="(/dead-letters\?header=[^"]*)">([^<]*)<`)
	var links [][]string
	var body string
	await.Until(t, "the overview has its links", func() bool {
		_, body = fetch(t, http.MethodGet, at+"/", nil)
		links = link.FindAllStringSubmatch(body, -1)
		return len(links) == len(tasks)+1
	}, func() string { return body })
	if !strings.Contains(body, `<th scope="col">task</th>`) {
		t.Errorf("no column in\n%s", body)
	}
	for _, l := range links {
		target := html.UnescapeString(l[1])
		if _, body := fetch(t, http.MethodGet, at+target, nil); l[2] == "" || strings.Count(body, `href="/message?id=`) != 1 {
			t.Errorf("%s shows\n%s", target, body)
		} else if n := strings.Count(body, "<th scope=\"col\">task</th>"); n != 1 {
			t.Errorf("%s has %d columns with the task\n%s", target, n, body)
		} else if _, body = fetch(t, http.MethodGet, at+submitted(t, body, "/change"), nil); !strings.Contains(body, "<strong>1 dead letter</strong>") {
			t.Errorf("the change after %s:\n%s", target, body)
		}
	}
	if status, body := fetch(t, http.MethodGet, at+"/waiting?header=task", nil); status != http.StatusBadRequest || !strings.Contains(body, "NAME=PATTERN") {
		t.Errorf("a wrong filter: %d\n%s", status, body)
	}
}

// The tags are the keys named by --metrics-routing-keys, and "other" for the rest, and a header. That has the bound of the
// label, and nothing in a value ends it.
func TestDogStatsDHasTagsForRoutingKeysAndAHeader(t *testing.T) {
	t.Parallel()
	conn := listenForStatsd(t)
	env, db := withTables(t)
	env["CDC_RELAY_PUBLISHER"], env["CDC_RELAY_STATSD_ADDR"] = "stdout", conn.LocalAddr().String()
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) SELECT CASE WHEN i <= 2 THEN 'orders.created' ELSE 'invoices.' || i END, '1',
		jsonb_build_object('x-task', CASE WHEN i <= 2 THEN E'a,b|c#d\ne:f' ELSE 'task ' || i END) FROM generate_series(1, 500) i`)
	want(t, cdcRelay(t, env, "drain", "--metrics-routing-keys", "orders.*,paid", "--metrics-header", "x-task"), exitDone)
	var tags []string
	for _, line := range datagrams(t, conn, "cdc_relay.stream_connected:0|g") { // a later one
		if name, tag, _ := strings.Cut(line, "|c|#"); strings.HasPrefix(name, "cdc_relay.messages_published:") {
			tags = append(tags, tag)
		}
	}
	for _, wanted := range []string{"routing_key:orders.created,x_task:a_b_c_d?e:f", "routing_key:other,x_task:task 3"} {
		if !slices.ContainsFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, wanted) }) {
			t.Errorf("no %s", wanted)
		}
	}
	if len(tags) != 99 {
		t.Errorf("%d tags: %v", len(tags), tags)
	}
}
