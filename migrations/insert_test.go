package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// wantState checks the SQLSTATE; "": the row is accepted. The error must name what is wrong.
func wantState(t *testing.T, err error, state, names string) {
	t.Helper()
	var pgErr *pgconn.PgError
	errors.As(err, &pgErr)
	switch {
	case state == "" && err != nil:
		t.Errorf("rejected: %v", err)
	case state == "":
	case pgErr == nil:
		t.Errorf("got %v, want SQLSTATE %s", err, state)
	case pgErr.Code != state || !strings.Contains(pgErr.Message, names):
		t.Errorf("got %s (%s), want SQLSTATE %s naming %q", pgErr.Code, pgErr.Message, state, names)
	}
}

// Types, NOT NULL and the index reject them. The relay checks the rest.
func TestInvalidInsertsFail(t *testing.T) {
	conn := tabletest.New(t).Conn
	const notNull, badText, tooLong, outOfRange = "23502", "22P02", "54000", "22003"
	for _, test := range []struct{ columns, values, state, names string }{
		{"routing_key, payload", "'k', '{}'", "", ""},
		{"routing_key, payload", "'', 'null'", "", ""},
		{"routing_key, payload_bytes", "'k', ''", "", ""},
		{"routing_key, payload", "NULL, '{}'", notNull, "routing_key"},
		{"routing_key, payload", "'k', '{'", badText, "json"},
		{"routing_key, payload, headers", "'k', '{}', '{'", badText, "json"},
		{"routing_key, payload, message_id", "'k', '{}', 'x'", badText, "uuid"},
		{"routing_key, payload, schema_version", "'k', '{}', 32768", outOfRange, "smallint"},
		{"routing_key, payload, ordering_key", "'k', '{}', repeat('x', 2684)", "", ""},
		{"routing_key, payload, ordering_key", "'k', '{}', repeat('x', 2685)", tooLong, "outbox_ordering_key_idx"},
		{"routing_key, payload, ordering_key", "'k', '{}', repeat('é', 1343)", tooLong, "outbox_ordering_key_idx"},
		{"routing_key, payload, ordering_key, coalesce_key", "'k', '{}', repeat('x', 1000), repeat('x', 1674)", "", ""},
		{"routing_key, payload, ordering_key, coalesce_key", "'k', '{}', repeat('x', 1000), repeat('x', 1700)", tooLong, "outbox_coalesce_key_idx"},
		{"routing_key, payload, coalesce_key", "'k', '{}', repeat('x', 2685)", tooLong, "outbox_coalesce_key_idx"},
		{"routing_key, payload, expires_at, max_attempts, coalesce_key", "'k', '{}', now(), 0, 'c'", "", ""},
		{"routing_key, payload, available_at, possible_duplicate, last_error, redacted_payload", "'k', '1', now(), true, 'x', '1'", "", ""},
		// These become dead letters, see e2e.
		{"routing_key", "'k'", "", ""},
		{"routing_key, payload, payload_bytes", "'k', '{}', 'x'", "", ""},
		{"routing_key, payload, exchange", "repeat('k', 256), '1', repeat('x', 256)", "", ""},
		{"routing_key, payload, headers, properties", "'k', '1', '[1]', 'null'", "", ""},
		{"routing_key, payload, attempts, schema_version", "'k', '1', -1, 0", "", ""},
	} {
		t.Run(test.values, func(t *testing.T) {
			_, err := conn.Exec(t.Context(), fmt.Sprintf("INSERT INTO outbox (%s) VALUES (%s)", test.columns, test.values))
			wantState(t, err, test.state, test.names)
		})
	}
}

// Each INSERT would prepare CHECKs, generated columns and triggers again. docs/results/README.md has their cost.
func TestTheOutboxHasNoChecksOrTriggers(t *testing.T) {
	conn := tabletest.New(t).Conn
	rows, err := conn.Query(t.Context(), `
		SELECT conname::text FROM pg_constraint WHERE conrelid = 'outbox'::regclass AND contype NOT IN ('p', 'n')
		UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgrelid = 'outbox'::regclass
		UNION ALL SELECT attname::text FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attgenerated <> ''
		UNION ALL SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'outbox'::regclass AND indexprs IS NOT NULL
		UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'public'::regnamespace`)
	must(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(found) > 0 {
		t.Errorf("found %v, %v", found, err)
	}
}
