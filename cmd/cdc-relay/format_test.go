package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// wantJSON checks that the output is one JSON value with these values.
func wantJSON(t *testing.T, r result, code int, wanted map[string]any) {
	t.Helper()
	want(t, r, code)
	var got map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatalf("%v\n%s", err, r.stdout)
	}
	for key, value := range wanted {
		if !reflect.DeepEqual(got[key], value) {
			t.Errorf("%s is %v, want %v", key, got[key], value)
		}
	}
}

func TestVersionSetupAndDrainPrintJSON(t *testing.T) {
	t.Parallel()
	b := buildInfo()
	version := map[string]any{"version": b.Version, "commit": b.Commit, "date": b.Date, "go": b.Go, "platform": b.Platform}
	wantJSON(t, cdcRelay(t, nil, "version", "--json"), exitDone, version)
	wantJSON(t, cdcRelay(t, nil, "version", "--format", "json"), exitDone, version)
	wantJSON(t, cdcRelay(t, environment{"CDC_RELAY_FORMAT": "json"}, "version"), exitDone, version)
	if short, long := cdcRelay(t, nil, "--version"), cdcRelay(t, nil, "version"); short != long || long.code != exitDone {
		t.Errorf("--version: %+v, version: %+v", short, long)
	}

	env, conn := fresh(t)
	made := []any{"created tables public.outbox and public.outbox_dead_letter (version 1)"}
	wantJSON(t, cdcRelay(t, env, "setup", "--tables-only", "--json"), exitDone, map[string]any{"version": 1.0, "done": made})
	r := cdcRelay(t, env, "setup", "--json")
	wantJSON(t, r, exitDone, map[string]any{"table": "public.outbox", "version": 1.0})
	if !strings.Contains(r.stdout, "created slot "+env["CDC_RELAY_SLOT"]) {
		t.Errorf("got %s", r.stdout)
	}
	wantJSON(t, cdcRelay(t, env, "setup", "--json"), exitDone, map[string]any{"version": 1.0, "done": []any{}})

	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	execute(t, conn, `INSERT INTO outbox (exchange, routing_key, payload) VALUES ('', 'nowhere', '1'), ('', 'k', NULL)`)
	wantJSON(t, cdcRelay(t, env, "drain", "--json"), exitDone,
		map[string]any{"published": 0.0, "rejected": 2.0, "dead_lettered": 1.0, "possible_duplicates": 0.0, "error": nil})
	wantUsage(t, cdcRelay(t, env, "drain", "--json", "--publisher", "stdout"), "--publisher stdout writes messages to the standard output: leave out --format json")
	execute(t, conn, `ALTER TABLE outbox DROP COLUMN headers`)
	r = cdcRelay(t, env, "setup", "--json")
	wantJSON(t, r, exitFailed, map[string]any{"table": "public.outbox"})
	if !strings.Contains(r.stdout, `"error": "`) || !strings.Contains(r.stderr, "cdc-relay: ") {
		t.Errorf("got %s%s", r.stdout, r.stderr)
	}
}
