package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
)

func executable(t *testing.T, script string) string {
	t.Helper()
	file := writeFile(t, "handler", script)
	must(t, os.Chmod(file, 0o700))
	return file
}

// handlerThat returns a program that has these cases for the routing keys of messages in $line. It confirms others.
func handlerThat(t *testing.T, does string) string {
	t.Helper()
	return executable(t, `#!/bin/sh
answer() { printf '%s\n' "$line" | sed 's/.*"message_id":"\([^"]*\)".*/{"message_id": "\1", '"$1"'}/'; }
while IFS= read -r line; do
  key=$(printf '%s' "$line" | sed 's/.*"routing_key":"\([^"]*\)".*/\1/')
  case "$key" in
  `+does+`
  *) answer '"outcome": "confirmed"' ;;
  esac
done
`)
}

// The redelivered messages are marked. The row of a rejected message waits as long as the handler says.
func TestUnansweredMessagesGoToTheNextHandler(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	folder := t.TempDir()
	// It exits at its first message without an answer. CDC_RELAY_… must not be in its environment.
	handler := handlerThat(t, `busy) answer '"outcome": "rejected", "retry_in": "20h", "detail": "busy"' ;;
  bad) answer '"outcome": "impossible", "detail": "bad"' ;;
  first)
    printf '%s\n' "$line" >> `+folder+`/got
    env | grep CDC_RELAY_ >> `+folder+`/leaked
    [ "$(wc -l < `+folder+`/got)" -gt 1 ] || exit 4
    answer '"outcome": "confirmed"' ;;`)
	execute(t, conn, `INSERT INTO outbox (routing_key, payload, coalesce_key) VALUES ('first', '{"n" : 1}', 'c'), ('busy', '2', NULL), ('bad', '3', NULL)`)
	env["CDC_RELAY_SEND_TIMEOUT"] = "10m"
	drain := []string{"drain", "--publisher", "exec", "--json", "--header-columns", "coalesce_key", "--", handler, "-5"}
	r := cdcRelay(t, env, drain...)
	wantTexts(t, r.stderr, "the handler has ended: exit status 4")
	if r.code == exitFailed { // the handler that exited already had the other messages
		wantJSON(t, r, exitFailed, map[string]any{"published": 0.0})
		r = cdcRelay(t, env, drain...)
	}
	wantJSON(t, r, exitDone, map[string]any{"published": 1.0, "rejected": 2.0, "dead_lettered": 1.0})
	text, err := os.ReadFile(filepath.Join(folder, "got"))
	must(t, err)
	first, again, _ := strings.Cut(string(text), "\n")
	wantTexts(t, first, `"payload":{"n" : 1},"payload_base64":null}`, `"headers":{"coalesce_key":"c"}`)
	wantTexts(t, again, `"possible_duplicate":true,"payload":{"n" : 1},`)
	if leaked, err := os.ReadFile(filepath.Join(folder, "leaked")); err != nil || len(leaked) > 0 {
		t.Errorf("the handler sees %s, %v", leaked, err)
	}
	wantValue(t, conn, "busy 1 handler_rejected: busy t",
		`SELECT concat_ws(' ', routing_key, attempts, last_error, available_at > now() + interval '19 hours') FROM outbox`)
	wantValue(t, conn, "handler_impossible", `SELECT failure_reason FROM outbox_dead_letter`)
	for _, command := range []string{"drain", "check"} {
		wantUsage(t, cdcRelay(t, env, command, "--publisher", "exec", "--", "/nowhere/handler"), `--publisher exec: exec: "/nowhere/handler": stat /nowhere/handler: no such file or directory`)
	}
}

// poisoned ends a handler at each message with the routing key poison.
const poisoned = `poison) exit 4 ;;`

// A message that ends every handler is rejected by drain as by run. The first of several stands before the others.
func TestDrainRejectsAMessageThatEndsTheHandler(t *testing.T) {
	t.Parallel()
	handler := handlerThat(t, poisoned)
	env, conn := withTables(t, "--mode", "poll")
	env["CDC_RELAY_SEND_TIMEOUT"] = "5s"
	drain := func(wanted map[string]any, more ...string) {
		t.Helper()
		r := cdcRelay(t, env, append(append([]string{"drain", "--publisher", "exec", "--json"}, more...), "--", handler)...)
		wantJSON(t, r, exitDone, wanted)
	}
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) SELECT unnest('{poison,poison,good,good,good}'::text[]), '1'`)
	drain(map[string]any{"published": 3.0, "rejected": 2.0, "dead_lettered": 0.0})
	wantValue(t, conn, "poison1true poison1true",
		`SELECT string_agg(routing_key || attempts || (available_at > now()), ' ') FROM outbox`)
	execute(t, conn, `UPDATE outbox SET available_at = NULL`)
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('good', '1')`)
	drain(map[string]any{"published": 1.0, "rejected": 2.0, "dead_lettered": 2.0}, "--max-retries", "1")
	wantValue(t, conn, "retries_exhausted2",
		`SELECT string_agg(DISTINCT failure_reason || attempts, ' ') FROM outbox_dead_letter`)
}

// Without another message, nothing shows that the handler works at all.
func TestDrainSaysWhyAHandlerThatOnlyEndsLeavesRows(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	handler := handlerThat(t, poisoned)
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('poison', '1')`)
	env["CDC_RELAY_SEND_TIMEOUT"] = "2s"
	r := cdcRelay(t, env, "drain", "--publisher", "exec", "--", handler)
	wantError(t, r, "due rows remain in public.outbox: 1 or more, the first has id 1: the publisher is connecting: the handler has ended: exit status 4")
	wantValue(t, conn, "poison0", `SELECT routing_key || attempts FROM outbox`)
}

// A handler answers "unknown" for every message, with and without a key.
func TestDrainEndsIfNoOutcomeIsKnown(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--mode", "poll")
	handler := handlerThat(t, `bad) answer '"outcome": "unknown", "detail": "timeout"' ;;`)
	env["CDC_RELAY_SEND_TIMEOUT"] = "3s"
	for _, test := range []struct {
		rows      string
		published float64
	}{
		{`('good', '1', NULL), ('bad', '2', NULL)`, 1}, // the relay does not wait for the second
		{`('bad', '2', 'k')`, 0},
	} {
		execute(t, conn, `INSERT INTO outbox (routing_key, payload, ordering_key) VALUES `+test.rows)
		r := cdcRelay(t, env, "drain", "--publisher", "exec", "--json", "--", handler)
		wantJSON(t, r, exitFailed, map[string]any{"published": test.published, "rejected": 0.0, "dead_lettered": 0.0})
		wantTexts(t, r.stderr, "for 3s no message was confirmed or rejected")
		wantValue(t, conn, "bad0", `SELECT string_agg(routing_key || attempts, ' ') FROM outbox`)
		execute(t, conn, `DELETE FROM outbox`)
	}
}

// TestNoProcessOfTheHandlerIsLeft: the children of a handler that ends are killed, and so is a handler that does not end
// when the relay was killed. Each has a connection to the test.
func TestNoProcessOfTheHandlerIsLeft(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('r', '1')`)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	for _, test := range []struct {
		name, script string
		killed       bool
	}{
		{"child", `exec 3<>/dev/tcp/127.0.0.1/%d; (read -r -u 3) </dev/null >/dev/null 2>&1 & exec 3>&-; read -r; exit 1`, false},
		{"handler", `exec 3<>/dev/tcp/127.0.0.1/%d; read -r -u 3`, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.killed && runtime.GOOS != "linux" {
				t.Skip("only Linux kills the handler of a killed relay")
			}
			handler := executable(t, fmt.Sprintf("#!/bin/bash\n"+test.script+"\n", port))
			relay := start(t, env, "run", "--mode", "poll", "--http-addr", "", "--send-timeout", "1h", "--publisher", "exec", "--", handler)
			must(t, listener.(*net.TCPListener).SetDeadline(time.Now().Add(await.Hang())))
			process, err := listener.Accept()
			must(t, err)
			defer process.Close()
			if test.killed {
				must(t, relay.Process.Kill())
			}
			_ = process.SetReadDeadline(time.Now().Add(await.Hang()))
			if _, err := process.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the process is still there: %v", err)
			}
		})
	}
}
