package e2e

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// They fail in the application's own transaction, and nothing of it is published. All other mistakes become dead
// letters (mistakes).
func TestInvalidInsertsFailAndNameTheColumn(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	arrived := w.consume(w.queue)
	w.run()
	const notNull, badText, tooLong, outOfRange = "23502", "22P02", "54000", "22003"
	for _, c := range []struct {
		name string
		row  row
		code string
		says string
	}{
		{"payload that is not JSON", row{"payload": "{"}, badText, "invalid input syntax for type json"},
		{"headers that are not JSON", row{"headers": "{"}, badText, "invalid input syntax for type json"},
		{"no routing key", row{"routing_key": nil}, notNull, "routing_key"},
		{"message id that is none", row{"message_id": "x"}, badText, "invalid input syntax for type uuid"},
		{"schema version beyond its type", row{"schema_version": "32768"}, outOfRange, "smallint"},
		{"ordering key of 2685 bytes", row{"ordering_key": strings.Repeat("o", 2685)}, tooLong, "outbox_ordering_key_idx"},
		{"ordering key of 1343 characters and 2686 bytes", row{"ordering_key": strings.Repeat("é", 1343)}, tooLong, "outbox_ordering_key_idx"},
		{"ordering key of a million bytes", row{"ordering_key": strings.Repeat("o", 1_000_000)}, tooLong, "index row requires"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rejected *pgconn.PgError
			err := w.tryInsert(c.row)
			if !errors.As(err, &rejected) {
				t.Fatalf("the INSERT did not fail: %v", err)
			}
			if rejected.Code != c.code {
				t.Errorf("SQLSTATE %s, want %s: %s", rejected.Code, c.code, rejected.Message)
			}
			if !strings.Contains(rejected.Message, c.says) {
				t.Errorf("%q does not name %q", rejected.Message, c.says)
			}
		})
	}
	for _, r := range []row{
		{"routing_key": w.queue, "payload": "null"}, // JSON null is a payload
		{"routing_key": w.queue, "properties": `{}`, "headers": `{}`},
		{"ordering_key": strings.Repeat("o", 2684)},
	} {
		w.await(arrived, w.insert(r))
	}
	if got := arrived.distinct(); got != 3 {
		t.Errorf("%d messages arrived, only 3 were committed", got)
	}
	w.noDeadLetters()
}

// INSERT on the columns of the message is enough.
func TestAnApplicationNeedsOnlyInsert(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	arrived := w.consume(w.queue)
	w.run()
	role := w.slot // unique on the server
	w.exec(`CREATE ROLE ` + role)
	t.Cleanup(func() {
		if err := services.SharedPostgres(t).Exec(context.Background(), strings.TrimPrefix(mustURL(t, w.database).Path, "/"),
			`DROP OWNED BY `+role, `DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	w.exec(`GRANT INSERT (routing_key, payload, headers, properties, ordering_key) ON outbox TO ` + role)
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`SET LOCAL ROLE ` + role,
		`INSERT INTO outbox (routing_key, payload, headers, properties, ordering_key)
		 VALUES ('` + w.queue + `', '{}', '{"a": 1}', '{"priority": 3}', 'k')`,
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.emptied()
	w.eventually("the message arrives", func() bool { return arrived.distinct() == 1 })
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
