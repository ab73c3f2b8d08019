package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// demo --console serves the console of the relay while the demo runs, and stops it at the end.
func TestTheDemoServesTheConsole(t *testing.T) {
	env, _ := fresh(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	relay := start(t, env, "run", "--setup", "--log-format", "json")
	relay.await(t, `"event":"streaming"`)
	env["CDC_RELAY_CONSOLE_LISTEN"] = "127.0.0.1:0"
	demo := start(t, env, "demo", "--console", "--rate", "50")
	var address string
	await.Until(t, "the demo shows arrivals", func() bool {
		first, rest, _ := strings.Cut(demo.stdout.String(), "\n")
		address = strings.TrimPrefix(first, "console: ")
		return strings.Contains(rest, "(p50 ")
	}, demo.stdout.String)
	status, body := fetch(t, "GET", address, nil)
	if status != 200 || !strings.Contains(body, "public.outbox") {
		t.Errorf("%d %s", status, body)
	}
	demo.signal(t, syscall.SIGINT)
	if code := demo.exit(t); code != exitDone {
		t.Errorf("exit code %d: %s", code, demo.stdout)
	}
	relay.stopsWell(t)

	r := cdcRelay(t, env, "demo", "--console", "--listen", "0.0.0.0:0")
	if want(t, r, exitUsage); !strings.Contains(r.stderr, "want an address on loopback") {
		t.Errorf("got %s", r.stderr)
	}
}
