package store_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// The server only says which function or operator is missing.
func TestAColumnOfAWrongTypeIsNamed(t *testing.T) {
	f := newFixture(t)
	f.Exec(`CREATE TYPE rke AS ENUM ('k')`)
	for column, types := range map[string][2]string{
		"routing_key": {"rke", "text"}, "exchange": {"bytea", "text"}, "headers": {"text[]", "jsonb"}, "available_at": {"text", "timestamp with time zone"},
		"schema_version": {"text", "smallint"}, "message_id": {"text", "uuid"}, "payload_bytes": {"jsonb", "bytea"},
	} {
		f.Exec(`ALTER TABLE outbox DROP COLUMN ` + column + ` CASCADE`)
		f.Exec(`ALTER TABLE outbox ADD COLUMN ` + column + ` ` + types[0])
		f.Exec(`TRUNCATE outbox; INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')`)
		var failed error
		db := open(t, f.URL, store.Options{Table: tabletest.Name()}) // its statements are prepared for these types
		for _, statement := range []func() error{
			func() error { _, err := db.FindNewest(t.Context(), 0, 1<<40, 10); return err },
			func() error { _, _, err := db.ReadRows(t.Context(), f.IDs("true"), 1<<40); return err },
			func() error { _, err := db.NextDue(t.Context()); return err },
		} {
			if err := statement(); err != nil && failed == nil {
				failed = err
			}
		}
		if failed == nil {
			t.Logf("%s as %s is read without an error", column, types[0])
		} else if got, gone := db.Explain(t.Context(), failed); gone || !strings.HasPrefix(got.Error(), "a column of table public.outbox may have a wrong type: ") {
			t.Errorf("%s: got %v", column, got)
		}
		f.Exec(`ALTER TABLE outbox DROP COLUMN ` + column)
		f.Exec(`ALTER TABLE outbox ADD COLUMN ` + column + ` ` + types[1])
	}
}
