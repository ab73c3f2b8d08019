package e2e

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// TestAMistakeThatSQLSeesFailsAtTheInsert: in the application's own transaction, with
// words that say what is wrong. Nothing of it is published.
func TestAMistakeThatSQLSeesFailsAtTheInsert(t *testing.T) {
	t.Parallel()
	w := newWorld(t).setUp()
	arrived := w.consume(w.queue)
	w.run()
	const notNull, check, badJSON = "23502", "23514", "22P02"
	for _, c := range []struct {
		name string
		row  row
		code string
		says string // in the constraint's name or the message
	}{
		{"no payload at all", row{"payload": nil}, check, "needs_payload_or_payload_bytes_and_not_both"},
		{"both payloads", row{"payload": "{}", "payload_bytes": []byte("x")}, check, "needs_payload_or_payload_bytes_and_not_both"},
		{"payload that is not JSON", row{"payload": "{"}, badJSON, "invalid input syntax for type json"},
		{"no routing key", row{"routing_key": nil}, notNull, "routing_key"},
		{"routing key of 256 bytes", row{"routing_key": strings.Repeat("k", 256)}, check, "routing_key_at_most_255_bytes"},
		{"routing key of 86 characters and 258 bytes", row{"routing_key": strings.Repeat("€", 86)}, check, "routing_key_at_most_255_bytes"},
		{"exchange of 256 bytes", row{"exchange": strings.Repeat("e", 256)}, check, "exchange_at_most_255_bytes"},
		{"ordering key of 1025 bytes", row{"ordering_key": strings.Repeat("o", 1025)}, check, "ordering_key_at_most_1024_bytes"},
		{"headers are an array", row{"headers": "[]"}, check, "headers_is_a_json_object"},
		{"headers are a string", row{"headers": `"x"`}, check, "headers_is_a_json_object"},
		{"headers are JSON null", row{"headers": "null"}, check, "headers_is_a_json_object"},
		{"properties are an array", row{"properties": "[]"}, check, "properties must be a JSON object"},
		{"property of the wrong type: text", row{"properties": `{"content_type": 7}`}, check, "property content_type must be text"},
		{"property of the wrong type: number", row{"properties": `{"priority": "7"}`}, check, "property priority must be an integer"},
		{"priority 256", row{"properties": `{"priority": 256}`}, check, "property priority must be an integer from 0 to 255"},
		{"priority 1.5", row{"properties": `{"priority": 1.5}`}, check, "property priority must be an integer"},
		{"priority -1", row{"properties": `{"priority": -1}`}, check, "property priority must be an integer"},
		{"delivery mode 3", row{"properties": `{"delivery_mode": 3}`}, check, "property delivery_mode must be 1 (transient) or 2"},
		{"unknown property", row{"properties": `{"contenttype": "x"}`}, check, "property contenttype is not known"},
		{"property that is not the application's", row{"properties": `{"message_id": "x"}`}, check, "property message_id is not known"},
		{"property of 256 bytes", row{"properties": `{"type": "` + strings.Repeat("t", 256) + `"}`}, check, "property type must be text of at most 255 bytes"},
		{"expiration in words", row{"properties": `{"expiration": "1h"}`}, check, "property expiration must be milliseconds"},
		{"negative expiration", row{"properties": `{"expiration": -1}`}, check, "property expiration must be milliseconds"},
		{"fractional expiration", row{"properties": `{"expiration": 1.5}`}, check, "property expiration must be milliseconds"},
		{"expiration beyond the broker's", row{"properties": `{"expiration": "4294967296"}`}, check, "property expiration must be at most 4294967295"},
		{"negative attempts", row{"attempts": -1}, check, "attempts_not_negative"},
		{"schema version 0", row{"schema_version": 0}, check, "schema_version_at_least_1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var refused *pgconn.PgError
			err := w.tryInsert(c.row)
			if !errors.As(err, &refused) {
				t.Fatalf("the INSERT was not refused: %v", err)
			}
			if refused.Code != c.code {
				t.Errorf("SQLSTATE %s, want %s: %s", refused.Code, c.code, refused.Message)
			}
			if !strings.Contains(refused.ConstraintName+" "+refused.Message, c.says) {
				t.Errorf("%q says nothing of %q", refused.Message, c.says)
			}
		})
	}
	for _, r := range []row{
		{"routing_key": w.queue, "payload": "null"}, // JSON null is a payload
		{"routing_key": w.queue, "properties": `{}`, "headers": `{}`},
		{"ordering_key": strings.Repeat("o", 1024)},
	} {
		w.await(arrived, w.insert(r))
	}
	if got := arrived.distinct(); got != 3 {
		t.Errorf("%d messages arrived, only 3 were committed", got)
	}
	w.noDeadLetters()
}

// TestTheApplicationNeedsInsertAlone: no other privilege, no access to the function of the checks.
func TestTheApplicationNeedsInsertAlone(t *testing.T) {
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
	w.exec(`GRANT INSERT ON outbox TO ` + role)
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
	if arrived.distinct() != 1 {
		t.Error("it has not arrived")
	}
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}
