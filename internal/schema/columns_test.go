package schema

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The types are written here again, because who embeds a relay does not need the SQL that creates the tables.
func TestColumnTypesAreThoseOfTheTables(t *testing.T) {
	table := outbox.Table{Schema: "public", Name: "outbox"}
	left := columnTypes()
	for _, of := range []outbox.Table{table, table.DeadLetter()} {
		columns, err := migrations.Columns(table, of)
		if err != nil || len(columns) == 0 {
			t.Fatal(columns, err)
		}
		for _, c := range columns {
			if is := columnTypes()[c.Name]; is != c.Type {
				t.Errorf("%s of %s is %q here, and %q in the table", c.Name, of, is, c.Type)
			}
			delete(left, c.Name)
		}
	}
	if len(left) > 0 {
		t.Errorf("no table has the columns %v", left)
	}
}
