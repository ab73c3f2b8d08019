package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/lmittmann/tint"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// hostile are characters that a terminal or a browser obeys. NUL cannot be in a text of Postgres.
func hostile() []rune {
	return []rune{
		'\x01', '\a', '\b', '\r', '\x1b', 0x7f, 0x85, 0x9b, 0x9d, 0x61c, 0x200b, 0x200e, 0x200f, 0x2028, 0x202a, 0x202e, 0x2060, 0x2066, 0x2069,
		0xfeff, 0xfff9, 0xe0041,
	}
}

// hostileText has all of them, within codes that would erase the screen or hide text.
func hostileText() string { return "a\x1b[2Jb\x1b[8mc\u009b2Kd" + string(hostile()) + "end" }

func wantSafe(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range hostile() {
		if strings.ContainsRune(text, r) {
			t.Errorf("%s contains %U:\n%q", what, r, text)
		}
	}
}

func TestControlCharactersReachNoTerminal(t *testing.T) {
	for _, colours := range []bool{false, true} {
		for _, size := range []int{1, 2, 3, 1000} {
			var out bytes.Buffer
			w := &show.SafeWriter{Out: &out, Colours: colours}
			encoder := json.NewEncoder(w)
			want := hostileText() + "ä€😀\u200d👩\n\t<b>"
			encoder.SetEscapeHTML(false)
			var line bytes.Buffer
			json.NewEncoder(&line).Encode(want) //nolint:errcheck // a buffer
			for text := line.Bytes(); len(text) > 0; text = text[min(size, len(text)):] {
				if n, err := w.Write(text[:min(size, len(text))]); err != nil || n != min(size, len(text)) {
					t.Fatal(n, err)
				}
			}
			wantSafe(t, "JSON", out.String())
			var got string
			if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != want {
				t.Errorf("%q became %q, %v", want, got, err)
			}
		}
	}
	var out bytes.Buffer
	w := &show.SafeWriter{Out: &out, Redacts: true}
	fmt.Fprintf(w, "postgres://u:secret@h %s\xff\x1b[31m\n", hostileText())
	wantSafe(t, "text", out.String())
	if strings.Contains(out.String(), "secret") || !strings.HasSuffix(out.String(), "\ufffd\\u001b[31m\n") {
		t.Errorf("got %q", out.String())
	}
	out.Reset()
	w = &show.SafeWriter{Out: &out, Colours: true}
	fmt.Fprint(w, "\x1b[31mred\x1b[0m \x1b[8mhidden \x1b[30;40mblack\x1b[38;5;0m")
	if got := out.String(); got != "\x1b[31mred\x1b[0m \\u001b[8mhidden \\u001b[30;40mblack\\u001b[38;5;0m" {
		t.Errorf("got %q", got)
	}
}

// The handlers for people and for machines.
func TestControlCharactersReachNoLog(t *testing.T) {
	for name, handler := range map[string]func(io.Writer) slog.Handler{
		"text": func(w io.Writer) slog.Handler {
			return tint.NewTextHandler(w, &tint.Options{NoColor: true, ReplaceAttr: safeAttr})
		},
		"json": func(w io.Writer) slog.Handler { return slog.NewJSONHandler(w, nil) },
	} {
		var out bytes.Buffer
		log := slog.New(handler(&show.SafeWriter{Out: &out, Colours: true}))
		s := hostileText()
		log.With("of "+s, s).WithGroup("g "+s).Warn("message "+s, "error", errors.New(s), "list", []string{s}, "stringer", slog.AnyValue(bytes.NewBufferString(s)))
		wantSafe(t, name, out.String())
		if strings.Count(out.String(), "\n") != 1 || strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s: %q", name, out.String())
		}
	}
}

// Every view shows names, errors and headers of other people. Headers that repeat the body are hidden with it.
func TestViewsShowNoControlCharacterAndNoHiddenHeader(t *testing.T) {
	t.Parallel()
	env, db := withTables(t, "--mode", "poll", "--keep-published", "1h")
	const columns = `routing_key, exchange, ordering_key, last_error, headers, properties, redacted_payload, payload, attempts`
	execute(t, db, `INSERT INTO outbox (`+columns+`, available_at) SELECT $1, $1, $1, 'nack: ' || $1, jsonb_build_object($1, $1, 'argsrepr', '(s3cr3t,)',
		'headers', jsonb_build_object('kwargsrepr', '{s3cr3t}')), jsonb_build_object('type', $1), CASE WHEN i = 2 THEN to_json($1) END, '"b0dy"', 1,
		CASE WHEN i = 1 THEN now() + interval '1 hour' END FROM generate_series(1, 2) i`, hostileText())
	for table, more := range map[string]string{"outbox_dead_letter": "failure_reason, dead_at", "outbox_published": "published_at"} {
		values := map[string]string{"outbox_dead_letter": "'nack ' || routing_key, now()", "outbox_published": "now()"}[table]
		execute(t, db, `INSERT INTO `+table+` (id, created_at, message_id, schema_version, `+columns+`, `+more+`) SELECT id + 10 * length('`+table+`'), created_at,
			message_id, 1, `+columns+`, `+values+` FROM outbox`)
	}
	for _, command := range []string{
		"list", "keys", "keys --blocked", "explain 1", "explain 2", "list --state dead", "explain 181", "explain 182",
		"list --state published", "explain 161", "explain 162", "stats",
	} {
		for _, more := range []string{"", " --json"} {
			r := cdcRelay(t, env, strings.Fields(command+more)...)
			want(t, r, exitDone)
			wantSafe(t, command+more, r.stdout+r.stderr)
			if strings.Contains(r.stdout, "s3cr3t") || strings.Contains(r.stdout, "b0dy") || !strings.Contains(r.stdout, `\u009b`) && !strings.Contains(command, "explain 2") {
				t.Errorf("%s%s:\n%s", command, more, r.stdout)
			}
		}
	}
	for args, shown := range map[string]bool{"list --state retrying": true, "list --state blocked": false, "list --state dead": true, "explain 1": true, "explain 2": false, "explain 181": true, "explain 182": false, "explain 161": true} {
		r := cdcRelay(t, env, append(strings.Fields(args), "--payload", "--json")...)
		table := cdcRelay(t, env, append(strings.Fields(args), "--payload")...)
		if strings.Contains(r.stdout, "s3cr3t") != shown || strings.Contains(r.stdout, "b0dy") != shown ||
			strings.Contains(table.stdout, "b0dy") != shown || !shown && !strings.Contains(r.stdout, `"payload_shown": "redacted"`) {
			t.Errorf("%s --payload:\n%s%s", args, r.stdout, table.stdout)
		}
	}
	for _, args := range [][]string{{"explain", hostileText()}, {"list", "--table", hostileText()}, {"list", "--reason", hostileText()}, {hostileText()}, {"--" + hostileText()}} {
		r := cdcRelay(t, env, args...)
		wantSafe(t, strings.Join(args, " "), r.stdout+r.stderr)
	}
	_, at := startConsole(t, env)
	for _, path := range []string{"/waiting", "/keys", "/dead-letters", "/published", "/message?id=1", "/message?id=181", "/message?id=162", "/waiting?reason=" + url.QueryEscape(hostileText())} {
		_, body := fetch(t, http.MethodGet, at+path, nil)
		text, _, _ := strings.Cut(body, "<form") // its fields have the values
		wantSafe(t, path, text)
		if strings.Contains(body, "s3cr3t") || strings.Contains(body, "\x1b") || strings.Contains(body, "\u202e") {
			t.Errorf("%s:\n%q", path, body)
		}
	}
}
