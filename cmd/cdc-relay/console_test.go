package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
)

func startConsole(t *testing.T, env environment, args ...string) (*command, string) {
	t.Helper()
	c := start(t, env, append([]string{"console", "--console-listen", "127.0.0.1:0", "--publisher", "stdout"}, args...)...)
	var line struct{ URL string }
	must(t, json.Unmarshal([]byte(c.await(t, "console_started")), &line))
	return c, strings.TrimSuffix(line.URL, "/")
}

// fetch sends a request as a browser without JavaScript does.
func fetch(t *testing.T, method, address string, form url.Values, header ...string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(await.Context(t), method, address, strings.NewReader(form.Encode()))
	must(t, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(text)
}

// wantPage expects that the answer to a GET has this status and these texts, and returns it.
func wantPage(t *testing.T, address string, status int, wanted ...string) string {
	t.Helper()
	got, body := fetch(t, http.MethodGet, address, nil)
	if got != status {
		t.Errorf("%s: status %d, want %d", address, got, status)
	}
	wantTexts(t, body, wanted...)
	return body
}

func TestConsoleShowsEveryPage(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	execute(t, db, `INSERT INTO outbox
		(routing_key, payload, ordering_key, available_at, attempts, last_error, redacted_payload)
		VALUES ('<b>orders</b>', '{"card": "unredacted"}', 'customer-1', now() + interval '1 hour', 2,
			'unroutable: NO_ROUTE', '"***"')`)
	execute(t, db, `INSERT INTO outbox_dead_letter
		(id, created_at, message_id, attempts, schema_version, routing_key, failure_reason)
		VALUES (70, now(), gen_random_uuid(), 6, 1, 'dead.one', 'nack')`)
	execute(t, db, `INSERT INTO outbox_published
		(id, created_at, published_at, message_id, attempts, schema_version, routing_key)
		VALUES (60, now(), now(), gen_random_uuid(), 0, 1, 'published.one')`)
	c, at := startConsole(t, env, "--payload")
	for path, words := range map[string][]string{
		"/waiting":                       {"&lt;b&gt;orders", "retrying", "customer-1"},
		"/waiting?state=scheduled":       {"No message matches."},
		"/keys":                          {"customer-1", "it is tried again"},
		"/keys?blocked=1":                {"customer-1"},
		"/dead-letters":                  {"dead.one", "nack"},
		"/dead-letters?routing-key=none": {"No message matches."},
		"/published":                     {"published.one"},
		"/message?id=1":                  {"&#34;***&#34;", "(redacted)", "retrying", "Next try"},
		"/message?id=70":                 {"Dead letter", "cdc-relay resend "},
		"/message?id=60":                 {"Published", "published.one"},
		"/message?id=99":                 {"No table can tell why"},
		"/tail":                          {"published.one", "dead.one", "&lt;b&gt;orders"},
		"/relays":                        {"No relay tells that it runs"},
		"/search?q=1":                    {"Next try"},
		"/search?q=customer-1":           {"Waiting with this ordering key", "/waiting?ordering-key=customer-1"},
		"/search?q=dead.*":               {"Dead letters with this routing key", "dead.one"},
		"/search?q='1'":                  {"No message has the key"},
		"/check":                         {"critical", "publication"},
		"/icon.svg":                      {"<svg"},
		"/page.js":                       {"clipboard"},
		"/style.css":                     {"light-dark("},
	} {
		var status int
		var body string
		await.Until(t, path+" is complete", func() bool { // a check may take long
			status, body = fetch(t, http.MethodGet, at+path, nil)
			return !strings.Contains(body, "looks again by itself") && !strings.Contains(body, "Looking for the first time")
		})
		wantTexts(t, body, words...)
		if status != http.StatusOK || strings.Contains(body, "unredacted") || strings.Contains(body, "<button>Resend") {
			t.Errorf("%s: %d\n%s", path, status, body)
		}
	}
	await.Until(t, "the overview is filled", func() bool {
		_, body := fetch(t, http.MethodGet, at+"/", nil)
		return strings.Contains(body, "Queue depth 1") && strings.Contains(body, "<svg") &&
			strings.Contains(body, `<a href="/waiting?state=retrying" class="tile warning"><span class="what">Retrying</span> <strong>1</strong>`)
	})
	wantPage(t, at+"/waiting?older-than=x", http.StatusBadRequest,
		"want a duration", `name="older-than" value="x" aria-invalid="true"`)
	for request, want := range map[string]int{"POST /change": http.StatusForbidden, "GET /change?do=purge": http.StatusForbidden, "GET /etc/passwd": http.StatusNotFound} {
		method, path, _ := strings.Cut(request, " ")
		if status, body := fetch(t, method, at+path, url.Values{"do": {"purge"}}); status != want {
			t.Errorf("%s: %d, want %d\n%s", request, status, want, body)
		}
	}
	// The script of a page asks for what changes.
	execute(t, db, `INSERT INTO outbox (routing_key, payload) VALUES (E'a.new.one\rretry: 100000\r\r', '1')`)
	_, answer := fetch(t, http.MethodGet, at+"/waiting", nil, "X-Update", "1")
	var update map[string]string
	must(t, json.Unmarshal([]byte(answer), &update))
	if !strings.Contains(update["live"], "a.new.one") || !strings.Contains(update["verdict"], "verdict") {
		t.Errorf("the update is %q", update)
	}
	c.stopsWell(t)
}

// follow opens a link. It expects so many rows, also after the form with its filters was submitted, and that the change
// that is offered there is of as many, with a way back.
func follow(t *testing.T, at, link string, rows int) {
	t.Helper()
	target := html.UnescapeString(link)
	_, body := fetch(t, http.MethodGet, at+target, nil)
	if shown := strings.Count(body, `href="/message?id=`); shown != rows {
		t.Errorf("%s shows %d rows, want %d:\n%s", target, shown, rows, body)
		return
	}
	page, _, _ := strings.Cut(target, "?")
	_, again := fetch(t, http.MethodGet, at+submitted(t, body, page), nil)
	if shown := strings.Count(again, `href="/message?id=`); shown != rows {
		t.Errorf("%s shows %d rows after its form was submitted, want %d:\n%s", target, shown, rows, again)
	}
	_, question := fetch(t, http.MethodGet, at+submitted(t, body, "/change"), nil)
	back := regexp.MustCompile(`<a class="button" href="([^"]*)">Cancel</a>`).FindStringSubmatch(question)
	if !strings.Contains(question, fmt.Sprintf("<strong>%d ", rows)) || back == nil || html.UnescapeString(back[1]) != target {
		t.Errorf("the change after %s, with the way back %q:\n%s", target, back, question)
	}
}

// links waits until a page has so many links that begin like this, and a text.
func links(t *testing.T, at, page, begin string, n int) (found []string) {
	t.Helper()
	anchor := regexp.MustCompile(`href="(` + regexp.QuoteMeta(begin) + `[^"]*)">\s*[^<\s]`)
	var body string
	await.Until(t, page+" has its links", func() bool {
		_, body = fetch(t, http.MethodGet, at+page, nil)
		found = nil
		for _, link := range anchor.FindAllStringSubmatch(body, -1) {
			found = append(found, link[1])
		}
		return len(found) == n
	}, func() string { return body })
	return found
}

// A page that shows more rows than its link says would also change them.
func TestConsoleLinksKeepTheFilter(t *testing.T) {
	env, db := withTables(t, "--mode", "poll")
	// A page shows ten groups.
	names := []string{"", " lead", "lead", "''", "'", "a,b", "*.#", `"<b>&=%_\ü`, "\x1b[31m\n"}
	for _, name := range names {
		execute(t, db, `INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts, last_error)
			VALUES ($1, '1', $1, now() + interval '1 hour', 1, 'nack: no')`, name)
		execute(t, db, `INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, exchange,
			routing_key, headers, failure_reason, last_error, dead_at)
			VALUES (70, now(), gen_random_uuid(), 6, 1, $1, $1, jsonb_build_object('task', $1::text), 'nack', 'nack: no', now())`, name)
	}
	_, at := startConsole(t, env, "--allow-changes")
	for _, link := range append(links(t, at, "/keys", "/waiting?", len(names)), links(t, at, "/", "/dead-letters?", len(names))...) {
		follow(t, at, link, 1)
	}
	// A browser submits the names of all fields, also of empty ones.
	form := submitted(t, wantPage(t, at+"/dead-letters", http.StatusOK), "/dead-letters")
	for typed, want := range map[string]int{"": 9, " ": 9, " lead": 1, " ' lead' ": 1, "' lead '": 0, "''": 1, "'": 1} {
		filled := strings.Replace(form, "routing-key=", "routing-key="+url.QueryEscape(typed), 1)
		if _, body := fetch(t, http.MethodGet, at+filled, nil); strings.Count(body, `href="/message?id=`) != want {
			t.Errorf("with routing key %q in the form: want %d rows\n%s", typed, want, body)
		}
	}
	wantPage(t, at+"/change?do=purge&exchange=%28default%29", http.StatusOK,
		"<strong>1 dead letter</strong>", "Which: exchange (default).")
	wantPage(t, at+"/change?do=purge&id=70", http.StatusOK, `<a class="button" href="/message?id=70">Cancel</a>`)
	wantPage(t, at+"/change?do=purge&older-than=", http.StatusBadRequest)

	// Failures grouped by a header; dead letters without it are a group, too.
	execute(t, db, `UPDATE outbox_dead_letter SET exchange = NULL, routing_key = 'celery'`)
	execute(t, db, `UPDATE outbox_dead_letter SET headers = NULL WHERE headers ->> 'task' = ''`)
	_, at = startConsole(t, env, "--metrics-header", "task", "--allow-changes")
	for _, link := range links(t, at, "/", "/dead-letters?header=", len(names)) {
		follow(t, at, link, 1)
	}
	if body := wantPage(t, at+"/dead-letters", http.StatusOK); strings.Count(body, `<th scope="col">task</th>`) != 1 {
		t.Errorf("not one column with the task in\n%s", body)
	}
	wantPage(t, at+"/waiting?header=task", http.StatusBadRequest, "NAME=PATTERN")
}

// submitted returns the URL that the browser opens when the user submits the first form with this action, with the
// values in its fields.
func submitted(t *testing.T, body, action string) string {
	t.Helper()
	form := regexp.MustCompile(`(?s)<form method="(?:get|post)" action="` + action + `".*?</form>`).FindString(body)
	if form == "" {
		t.Fatalf("no form %s in\n%s", action, body)
	}
	query := url.Values{}
	fields := regexp.MustCompile(`<(?:input|select|button)[^>]* name="([^"]*)"(?: value="([^"]*)")?`)
	for _, field := range fields.FindAllStringSubmatch(form, -1) {
		if name := html.UnescapeString(field[1]); !query.Has(name) { // a browser sends only one button
			query.Set(name, html.UnescapeString(field[2]))
		}
	}
	return action + "?" + query.Encode()
}

// confirm submits the form of a question, and types what it asks for.
func confirm(t *testing.T, at, question string) (status int, body string) {
	t.Helper()
	form, err := url.ParseQuery(strings.TrimPrefix(submitted(t, question, "/change"), "/change?"))
	must(t, err)
	if form.Has("typed") {
		form.Set("typed", form.Get("shown"))
	}
	return fetch(t, http.MethodPost, at+"/change", form)
}

func TestAConsoleThatEverybodyCouldUseDoesNotStart(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600))
	const beyond = "beyond loopback it needs --token-file"
	for args, says := range map[string]string{
		"--console-listen 0.0.0.0:0":                   beyond,
		"--login-header X-User":                        "every client could choose the user; it also needs --token-file",
		"--login-header X-User: --token-file " + token: "want the name of a header",
		"--login-header Host --token-file " + token:    "want the name of a header",
		"--login-header= --token-file " + token:        "want the name of a header",
		"--token-file=":                                "--token-file: is empty",
		"--allowed-hosts http://console.example.com":   "want host names",
		"--allowed-hosts console.example.com:9465":     "want host names",
		"--allowed-hosts *":                            "want host names",
	} {
		env := environment{"CDC_RELAY_DATABASE_URL": someDatabase, "CDC_RELAY_PUBLISHER": "stdout"}
		r := cdcRelay(t, env, append([]string{"console"}, strings.Fields(args)...)...)
		if r.code != exitUsage || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: exit code %d, want %q:\n%s", args, r.code, says, r.stderr)
		}
	}
}

// Each filter either selects what it says, or is an error that says what is wrong.
func TestUnreadableFiltersAreTheMistakeOfTheRequest(t *testing.T) {
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	execute(t, db, `INSERT INTO outbox (routing_key, payload) VALUES ('orders.created', '1')`)
	_, at := startConsole(t, env, "--allow-changes")
	for _, path := range []string{
		"/waiting?", "/dead-letters?", "/published?", "/change?do=purge&", "/change?do=requeue&", "/change?do=retry&",
	} {
		for _, query := range []string{
			"routing-key=%00", "exchange=%c3%28", "ordering-key=%ed%a0%80", "older-than=-1h", "newer-than=1000000d",
			"routingkey=x", "limit=-1", "routing-key=a&routing-key=b", "routing-key=%zz", "state=nothing",
			"id=1e3%00", "id=9223372036854775808", "x;y=1", "%ff=1",
		} {
			if body := wantPage(t, at+path+query, http.StatusBadRequest); strings.Contains(body, "SQLSTATE") {
				t.Errorf("%s%s:\n%s", path, query, body)
			}
		}
	}
	cursor := func(text string) string { return "after=" + base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for path, status := range map[string]int{
		"/change?do=purge&id=":            400,
		"/change?do=purge&id=-1":          200,
		"/change?do=purge&state=retrying": 400,
		"/change?do=drop":                 503,

		"/waiting?older-than=2026-11-01&newer-than=2w":  200,
		"/dead-letters?newer-than=9999-12-31T23:59:59Z": 400,
		"/published?reason=nack":                        400,
		"/waiting?after=x":                              400,
		"/keys?routing-key=x":                           400,
		"/waiting?routing-key=orders.*":                 200,
		"/waiting?routing-key=orders%5c.x":              400,
		"/message?id=1&id=2":                            400,
		"/search?q=%ff":                                 400,
		"/search?q=%00":                                 400,
		"/search":                                       200,

		"/message?id=%00": 400, "/message?id=%ff": 400, "/message?id=..%2F..%2Fetc": 400, "/..%2f..%2fetc/passwd": 404,
		"/waiting?routing-key=" + strings.Repeat("x", 8000):                                             200,
		"/waiting?state=due&" + cursor(`{"l":"r.available_at, r.id","p":["x","1"]}`):                    400,
		"/dead-letters?" + cursor(`{"l":"r.dead_at DESC, r.id DESC","p":["2026-99-01 00:00:00Z","1"]}`): 400,
		"/keys?" + cursor(`{"l":"r.ordering_key","p":["\u0000"]}`):                                      400,
	} {
		if body := wantPage(t, at+path, status); strings.Contains(body, "SQLSTATE") {
			t.Errorf("%.100s:\n%s", path, body)
		}
	}
	wantPage(t, at+"/waiting?routing-key=orders.%25", http.StatusOK, "the % in &#34;orders.%&#34; is no wildcard")
}
