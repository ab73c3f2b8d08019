package main

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/test/await"
)

// Rows that match after the question are not changed without another question.
func TestConsoleChangesOnlyConfirmedRows(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	fail := func(died string) {
		t.Helper()
		execute(t, db, `INSERT INTO outbox (routing_key, payload, available_at, attempts)
			VALUES ('retry', '1', now() + interval '1 hour', 2)`)
		execute(t, db, `INSERT INTO outbox_dead_letter
			(id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, payload, dead_at)
			SELECT -1, now(), gen_random_uuid(), 6, 1, name, 'nack', '1', now() + $1::interval
			FROM unnest(ARRAY['purge', 'requeue']) name`, died)
	}
	left := func(do string) int {
		return query[int](t, db, `SELECT count(*)::int FROM (SELECT routing_key FROM outbox_dead_letter
			UNION ALL SELECT routing_key FROM outbox WHERE attempts > 0) waiting WHERE routing_key = $1`, do)
	}
	_, at := startConsole(t, env, "--allow-changes")
	fail("-1 hour")
	questions := map[string]string{}
	for _, do := range []string{"retry", "purge", "requeue"} {
		selected := url.Values{"do": {do}, "routing-key": {do}}
		_, questions[do] = fetch(t, http.MethodGet, at+"/change?"+selected.Encode(), nil)
		if !strings.Contains(questions[do], "<strong>1 ") {
			t.Fatalf("%s:\n%s", do, questions[do])
		}
	}
	fail("-1 hour") // its transaction has committed after the question
	for do, question := range questions {
		status, again := confirm(t, at, question)
		asks := strings.Contains(again, "More rows match") && strings.Contains(again, "<strong>2 ")
		if status != http.StatusConflict || !asks || left(do) != 2 {
			t.Errorf("%s of one confirmed row while two match: status %d, %d rows are left\n%s",
				do, status, left(do), again)
			continue
		}
		questions[do] = again
	}
	execute(t, db, `DELETE FROM outbox`)
	fail("1 hour") // it dies after the question
	for do, question := range questions {
		late := 1
		if do == "retry" {
			late = 0 // only the number counts, because a retry has no time of death
		}
		for range 2 { // the second time, the user reloads the page
			if status, body := confirm(t, at, question); status != http.StatusOK || left(do) != late {
				t.Errorf("%s: %d, %d are left, want %d\n%s", do, status, left(do), late, body)
			}
		}
	}
	fail("-1 hour")
	status, body := fetch(t, http.MethodPost, at+"/change", url.Values{"do": {"purge"}})
	if status != http.StatusConflict || left("purge") != 2 {
		t.Errorf("a purge without a question: status %d, %d rows are left\n%s", status, left("purge"), body)
	}
}

// Each group has as many rows as its link shows and its buttons change, whatever its names contain.
func TestConsoleGroupsChangeWhatTheyCount(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	names := []string{
		"orders.lost", "<script>alert(1)</script>", "\u202eevil", "a\r\nb\x1b[2K", `"><img src=x>&b=1`, "", "''", " lead",
	}
	for i, name := range names {
		execute(t, db, `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version,
			routing_key, failure_reason, last_error, dead_at)
			SELECT j, now(), gen_random_uuid(), 6, 1, $1::text, 'nack', $1 || ': ' || $1, now()
			FROM generate_series(1, $2::int) j`, name, i+2)
		execute(t, db, `INSERT INTO outbox (routing_key, payload, available_at, attempts, last_error)
			SELECT $1::text, '1', now() + interval '1 hour', 1, $1 || ': ' || $1 FROM generate_series(1, $2::int) j`, name, i+2)
	}
	_, at := startConsole(t, env, "--allow-changes")
	for page, heading := range map[string]string{
		"/dead-letters": "8 causes, 44 dead letters", "/waiting?state=retrying": "8 causes, 44 waiting retries",
	} {
		status, body := fetch(t, http.MethodGet, at+page, nil)
		groups := strings.Split(regexp.MustCompile(`(?s)<ul class="groups">.*?</ul>`).FindString(body), "<li>")[1:]
		if status != http.StatusOK || len(groups) != len(names) || strings.ContainsAny(body, "\r\x1b\u202e") ||
			!strings.Contains(body, "<h2>"+heading+"</h2>") ||
			strings.Contains(body, "<script>alert") || strings.Contains(body, "<img src=x") {
			t.Fatalf("%s: status %d, %d groups\n%s", page, status, len(groups), body)
		}
		for i, group := range groups {
			n := len(names) + 1 - i
			link := regexp.MustCompile(`<a href="([^"]*)"><strong>(\d+)</strong>`).FindStringSubmatch(group)
			if link[2] != strconv.Itoa(n) {
				t.Errorf("the group of %d says %s", n, link[2])
			}
			follow(t, at, link[1], n)
			forms := regexp.MustCompile(`(?s)<form.*?</form>`).FindAllString(group, -1)
			if len(forms) != 1 || !strings.Contains(forms[0], " "+link[2]+"…<") {
				t.Errorf("the buttons of the group of %d: %s", n, forms)
			}
		}
	}
}

// A waiting message is deleted, or moved to the dead letters so that its key goes on. Only one at a time is.
func TestConsoleChangesOneWaitingMessage(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	for n, values := range []string{`1, 'k'`, `0, 'k'`, `1, NULL`, `1, NULL`} {
		insertWaiting(t, db, n+1, `now() + interval '1 hour', `+values)
	}
	_, at := startConsole(t, env, "--allow-changes")
	const move, remove = "Move to dead letters and let the key go on…", `<button class="danger">Delete…</button>`
	wantPage(t, at+"/message?id=1", http.StatusOK, move, remove, "Resend now…")
	if behind := wantPage(t, at+"/message?id=2", http.StatusOK, remove); strings.Contains(behind, move) {
		t.Errorf("the message behind another one:\n%s", behind)
	}
	for query, status := range map[string]int{
		"do=bury": 400, "do=delete": 400, "do=delete&routing-key=orders": 400, "do=delete&id=99": 200,
	} {
		wantPage(t, at+"/change?"+query, status)
	}
	everything := url.Values{"do": {"delete"}, "shown": {"4"}}
	if status, body := fetch(t, http.MethodPost, at+"/change", everything); status != http.StatusBadRequest {
		t.Errorf("without an id: status %d\n%s", status, body)
	}
	const gone = "<strong>1 waiting message</strong> would be deleted for good"
	changes := func(selected, says, left string, asks ...string) {
		t.Helper()
		_, body := confirm(t, at, wantPage(t, at+"/change?"+selected, http.StatusOK, asks...))
		wantTexts(t, body, says)
		wantValue(t, db, left, `SELECT string_agg(id::text, ' ' ORDER BY id) FROM outbox`)
	}
	changes("do=bury&id=1", "moved 1 message to the dead letters", "2 3 4",
		"<strong>1 waiting message</strong> would become a dead letter",
		"<p>1 message waits behind these in their ordering keys.</p>")
	changes("do=delete&id=3", "deleted 1 message, never published", "2 4", gone)
	other := lockRow(t, db, 4)
	changes("do=delete&id=4", "1 message is locked", "2 4", gone)
	other.Close(t.Context())
	execute(t, db, `UPDATE outbox SET available_at = now() WHERE id = 4`)
	changes("do=delete&id=4", "may have published it", "2", gone)
	wantValue(t, db, 1, `SELECT id::int FROM outbox_dead_letter`)
}

// A replay inserts copies of exactly the messages that were confirmed.
func TestConsoleSendsPublishedMessagesAgain(t *testing.T) {
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	execute(t, db, `INSERT INTO outbox_published
		(id, created_at, published_at, message_id, attempts, schema_version, routing_key, payload)
		SELECT i, now(), now(), gen_random_uuid(), 0, 1, 'r' || i % 2, '1' FROM generate_series(1, 5) i`)
	_, at := startConsole(t, env, "--allow-changes")
	list := wantPage(t, at+"/published?routing-key=r1", http.StatusOK)
	question := wantPage(t, at+submitted(t, list, "/change"), http.StatusOK,
		"<strong>3 published messages</strong> would be sent again")
	_, body := confirm(t, at, question)
	wantTexts(t, body, "resent 3 messages")
	wantValue(t, db, 3, `SELECT count(*) FROM outbox WHERE routing_key = 'r1' AND possible_duplicate`)
}

// A change ends early only if the console stops.
func TestConsoleFinishesAChangeWithoutTheBrowser(t *testing.T) {
	const rows = operator.ChangeBatch + 500
	for name, test := range map[string]struct {
		stop func(c *command, at string, disconnect func())
		left int
	}{
		"the browser disconnects": {func(_ *command, _ string, disconnect func()) { disconnect() }, 0},
		"the console stops": {func(c *command, at string, _ func()) {
			c.signal(t, syscall.SIGTERM)
			await.Until(t, "the console accepts no connection", func() bool {
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(at, "http://"))
				if err == nil {
					conn.Close()
				}
				return err != nil
			})
		}, rows - operator.ChangeBatch},
	} {
		t.Run(name, func(t *testing.T) {
			env, db := withTables(t, "--mode", "poll")
			execute(t, db, `INSERT INTO outbox_dead_letter
				(id, created_at, message_id, attempts, schema_version, routing_key, failure_reason)
				SELECT i, now(), gen_random_uuid(), 6, 1, 'r', 'nack' FROM generate_series(1, $1::int) i`, rows)
			execute(t, db, `BEGIN`)
			execute(t, db, `UPDATE outbox_dead_letter SET attempts = 7 WHERE id = 1`)
			c, at := startConsole(t, env, "--allow-changes", "--log-format", "json")
			ctx, disconnect := context.WithCancel(await.Context(t))
			defer disconnect()
			form := url.Values{"do": {"purge"}, "shown": {strconv.Itoa(rows)}, "typed": {strconv.Itoa(rows)}}
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, at+"/change", strings.NewReader(form.Encode()))
			must(t, err)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if response, err := http.DefaultClient.Do(r); err == nil {
					response.Body.Close()
				}
			}()
			await.Until(t, "the purge waits for the row", func() bool {
				// In other databases of the server, slots are being created, and wait for every transaction.
				return query[bool](t, db, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_locks o USING (pid)
					WHERE l.transactionid = pg_current_xact_id()::xid AND NOT l.granted
					AND o.database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
			})
			test.stop(c, at, func() { disconnect(); <-gone })
			execute(t, db, `COMMIT`)
			c.await(t, "console_changed")
			wantValue(t, db, test.left, `SELECT count(*)::int FROM outbox_dead_letter`)
			if name == "the console stops" {
				c.ends(t, exitDone)
			}
			<-gone
		})
	}
}

func TestConsoleChangesRowsOnlyAfterLogin(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, available_at, attempts)
		VALUES ('r', '1', now() + interval '1 hour', 2), ('r', '1', NULL, 0)`)
	execute(t, db, `INSERT INTO outbox_dead_letter
		(id, created_at, message_id, attempts, schema_version, routing_key, failure_reason, payload)
		SELECT -i, now(), gen_random_uuid(), 6, 1, 'dead.' || i % 2, 'nack', '1' FROM generate_series(1, 5) i`)
	const token = "0123456789abcdef"
	file := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	c, at := startConsole(t, env, "--allow-changes", "--token-file", file, "--login-header", "X-User",
		"--log-format", "json")
	ada := strings.Replace(at, "http://", "http://ada:"+token+"@", 1)
	// post expects the status, a text and so many dead letters after a change.
	post := func(user, selected string, form url.Values, status int, says string, dead int) {
		t.Helper()
		got, body := fetch(t, http.MethodPost, ada+"/change?"+selected, form, "X-User", user)
		if left := query[int](t, db, `SELECT count(*)::int FROM outbox_dead_letter`); got != status || left != dead {
			t.Errorf("%s: status %d, want %d; %d dead letters are left, want %d", selected, got, status, left, dead)
		}
		wantTexts(t, body, says)
	}
	post("ada", "do=purge&routing-key=%zz", url.Values{}, http.StatusBadRequest, "", 5)
	post("ada", "do=purge", url.Values{"routing-key": {strings.Repeat("x", 1<<20)}}, http.StatusBadRequest, "", 5)
	const purge = "do=purge&routing-key=dead.0"
	_, body := fetch(t, http.MethodGet, ada+"/change?"+purge, nil, "X-User", "ada")
	wantTexts(t, body, "2 dead letters</strong> would be deleted for good", `value="dead.0"`)
	for _, typed := range []string{"", "1", "3", "all", "2x"} {
		post("ada", purge, url.Values{"shown": {"2"}, "typed": {typed}}, http.StatusBadRequest, "is not 2", 5)
	}
	post("ada", purge, url.Values{"shown": {"2"}, "typed": {" 2 "}}, http.StatusOK, "deleted 2 dead letters", 3)
	post("ada", "do=requeue", url.Values{"shown": {"3"}}, http.StatusOK, "resent 3 dead letters", 0)
	post("grace", "do=retry&state=scheduled", url.Values{}, http.StatusBadRequest, "", 0)
	post("grace", "do=retry&id=1", url.Values{"shown": {"1"}}, http.StatusOK, "made 1 message due now", 0)
	wantValue(t, db, false, `SELECT available_at > now() FROM outbox WHERE id = 1`)
	wantTexts(t, c.await(t, "console_changed"), `"purge"`, `"ada"`, `"routing key dead.0"`, `"rows":2`)
	wantTexts(t, c.await(t, "console_changed"), `"requeue"`, `"ada"`, `"all"`, `"rows":3`)
	wantTexts(t, c.await(t, "console_changed"), `"retry"`, `"grace"`, `"id 1"`, `"rows":1`)
}

// A page shows ten causes, and counts the others.
func TestConsoleCountsTheCausesThatItDoesNotShow(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	execute(t, db, `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version,
		exchange, routing_key, failure_reason)
		SELECT i, now(), gen_random_uuid(), 6, 1, 'exchange-' || i % 22, 'r', 'nack' FROM generate_series(1, 230) i`)
	_, at := startConsole(t, env)
	wantPage(t, at+"/dead-letters", http.StatusOK,
		"<h2>22 causes, 230 dead letters</h2>", "and 12 more, with 120 dead letters")
}
