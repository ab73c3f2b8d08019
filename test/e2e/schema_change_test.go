package e2e

import (
	"strings"
	"testing"
)

// The error names the column, wherever it is noticed first: in the stream, in a sweep, or in an update of a row.
func TestAMissingColumnStopsTheRelay(t *testing.T) {
	t.Parallel()
	unroutable := row{"exchange": "nowhere"}
	for _, c := range []struct {
		name   string
		args   []string
		change string
		row    string // what makes the relay notice
		column string
	}{
		{"renamed, streaming", nil, `ALTER TABLE outbox RENAME COLUMN headers TO heads`, "plain", "headers"},
		{"dropped, streaming", nil, `ALTER TABLE outbox DROP COLUMN ordering_key`, "plain", "ordering_key"},
		{"renamed, polling", []string{"--mode", "poll"}, `ALTER TABLE outbox RENAME COLUMN headers TO heads`, "plain", "headers"},
		{"dropped, needed for a rejection", nil, `ALTER TABLE outbox DROP COLUMN last_error`, "rejected", "last_error"},
		{
			"dropped from the dead letters",
			[]string{"--max-retries", "0"},
			`ALTER TABLE outbox_dead_letter DROP COLUMN failure_reason`, "rejected", "failure_reason",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, arrived := consuming(t)
			r := w.run(append([]string{"--poll-interval", "100ms", "--backoff-time", "50ms"}, c.args...)...)
			w.await(arrived, w.insert(nil))
			w.emptied()
			w.exec(c.change)
			if c.row == "rejected" {
				w.insert(unroutable)
			} else {
				w.insert(nil)
			}
			if code := r.exit(); code != 1 {
				t.Errorf("exit code %d", code)
			}
			lines := strings.Split(strings.TrimSpace(r.logs()), "\n")
			last := lines[max(0, len(lines)-2):]
			if !strings.Contains(strings.Join(last, "\n"), c.column) {
				t.Errorf("the last line is %q, which does not name the column %s", last, c.column)
			}
			if n := value[int](w, `SELECT count(*) FROM outbox`); n != 1 {
				t.Errorf("%d rows in the table, want the one that waits", n)
			}
		})
	}
}

// Rows inserted after TRUNCATE … RESTART IDENTITY are distinguished from earlier rows with the same ids.
func TestReusedIDsAfterTruncateArePublished(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	r := w.run("--backoff-time", "1h")
	total := 0
	for range 5 {
		w.exec(`INSERT INTO outbox (routing_key, payload) SELECT $1, '{}' FROM generate_series(1, 200)`, w.queue)
		total += 200
		w.eventually("they arrive", func() bool { return arrived.distinct() == total })
		w.exec(`TRUNCATE outbox RESTART IDENTITY`) // some rows may still be there, delivered and not yet deleted
	}
	w.insert(row{"exchange": "nowhere"}) // waits for its retry
	w.eventually("the row waits for its retry", func() bool { return value[int](w, `SELECT coalesce(max(attempts), 0) FROM outbox`) == 1 })
	w.exec(`TRUNCATE outbox`)
	w.await(arrived, w.insert(row{"ordering_key": "k"}))
	w.emptied()
	w.eventually("nothing is in flight any more", func() bool { return r.metric("cdc_relay_messages_in_flight") == 0 })
	noDuplicates(t, arrived)
	w.noDeadLetters()
}
