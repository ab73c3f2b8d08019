package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// They do so in one sentence, as run does.
func TestCommandsNameTheMissingTable(t *testing.T) {
	env, conn := fresh(t)
	commands := []string{"stats", "list", "keys", "list --state dead", "resend --state retrying --all"}
	wantMissing := func(command, table string) {
		t.Helper()
		r := cdcRelay(t, env, strings.Fields(command)...)
		line := fmt.Sprintf("cdc-relay: table %s does not exist in database %s\n  hint: ", table, conn.Config().Database)
		if want(t, r, exitFailed); !strings.HasPrefix(r.stderr, line) || !strings.Contains(r.stderr, "cdc-relay setup") {
			t.Errorf("%s: got %s", command, r.stderr)
		}
	}
	for _, command := range commands {
		wantMissing(command, "public.outbox")
	}
	want(t, cdcRelay(t, env, "setup", "--mode", "poll"), exitDone)
	execute(t, conn, "DROP TABLE outbox_dead_letter")
	wantMissing("list --state dead", "public.outbox_dead_letter")
	wantMissing("stats", "public.outbox_dead_letter")
}

func TestListAndKeysFilterAndPage(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	wantOutput(t, cdcRelay(t, env, "list"), "no messages")
	wantOutput(t, cdcRelay(t, env, "keys"), "no ordering keys")
	execute(t, conn, `INSERT INTO outbox (routing_key, payload, ordering_key, available_at, attempts, last_error) VALUES
		('orders.created', '1', 'customer-1', now() + interval '1 hour', 2, 'unroutable: NO_ROUTE'), ('orders.paid', '1', 'customer-1', NULL, 0, NULL),
		('orders.paid', '1', 'customer-2', NULL, 0, NULL)`)
	wantOutput(t, cdcRelay(t, env, "list"), "ROUTING KEY", "retrying", "in 59m", "customer-1", "unroutable: NO_ROUTE")
	wantOutput(t, cdcRelay(t, env, "keys"), "customer-1    1       1", "customer-2    0       3", "it is tried again")
	if r := cdcRelay(t, env, "keys", "--blocked"); !strings.Contains(r.stdout, "customer-1") || strings.Contains(r.stdout, "customer-2") {
		t.Errorf("got %s", r.stdout)
	}

	wantOutput(t, cdcRelay(t, env, "stats", "--json"), `"blocked_keys": 1`)

	var keys []string
	for args := []string{"list", "--routing-key", "orders.paid", "--limit", "1", "--format", "json"}; ; {
		r := cdcRelay(t, env, args...)
		want(t, r, exitDone)
		var page struct {
			Messages []struct {
				State       string `json:"state"`
				OrderingKey string `json:"ordering_key"`
			}
			Next *string
		}
		if err := json.Unmarshal([]byte(r.stdout), &page); err != nil || len(page.Messages) > 1 {
			t.Fatalf("%v\n%s", err, r.stdout)
		}
		for _, m := range page.Messages {
			keys = append(keys, m.State+" "+m.OrderingKey)
		}
		if page.Next == nil {
			break
		}
		args = append(args[:7:7], "--after", *page.Next)
	}
	if got := strings.Join(keys, ", "); got != "waiting customer-1, waiting customer-2" {
		t.Errorf("pages: %s", got)
	}
	for _, args := range [][]string{{"list", "--after", "17"}, {"list", "--state", "claimed"}, {"keys", "--limit", "0"}, {"list", "--state", "dead", "--after", "x"}} {
		want(t, cdcRelay(t, env, args...), exitUsage)
	}
}

// A page reads 10,000 rows, so only the third page has the row.
func TestListFindsARareRow(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) SELECT 'orders.paid', '1' FROM generate_series(1, 25000)`)
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('orders.lost', '1')`)
	wantOutput(t, cdcRelay(t, env, "list", "--routing-key", "orders.lost"), "orders.lost")
	wantOutput(t, cdcRelay(t, env, "list", "--routing-key", "orders.none"), "no messages")
}

func TestExplainNamesTheSessionThatLocksARow(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	execute(t, conn, `INSERT INTO outbox (routing_key, payload, ordering_key) VALUES ('a', '1', 'k'), ('b', '1', 'k')`)
	execute(t, conn, `SET application_name = 'nightly job'`)
	execute(t, conn, `BEGIN`)
	execute(t, conn, `SELECT FROM outbox WHERE id = 1 FOR UPDATE`)
	defer execute(t, conn, `ROLLBACK`)
	for _, id := range []string{"1", "2"} { // the second waits for the first
		wantOutput(t, cdcRelay(t, env, "explain", id), "is locked by nightly job, backend ", " from 127.0.0.1:", ", for ")
		wantOutput(t, cdcRelay(t, env, "explain", id, "--format", "json"), `"application": "nightly job"`)
	}
	wantOutput(t, cdcRelay(t, env, "list", "--state", "locked"), "locked")
	execute(t, conn, `UPDATE outbox SET schema_version = 7 WHERE id = 1`)
	execute(t, conn, `COMMIT`)
	wantOutput(t, cdcRelay(t, env, "list", "--state", "newer_version"), "newer_version")
	wantOutput(t, cdcRelay(t, env, "stats"), "1: schema_version is for a newer relay")
	execute(t, conn, `BEGIN`)
}
