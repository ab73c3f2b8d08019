package schema

import (
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The columns are written here again, because who embeds a relay does not need the SQL that creates the tables.
func TestColumnsAreThoseOfTheTables(t *testing.T) {
	table := outbox.Table{Schema: "public", Name: "outbox"}
	for _, need := range Needs(table) {
		defined, err := migrations.Columns(table, need.Table)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range defined {
			names = append(names, c.Name)
		}
		same(t, need.Table.String(), names, need.Columns)
	}
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("%s has %q, want %q", what, got, want)
	}
}

func TestEnqueueSetsTheColumnsOfAnApplication(t *testing.T) {
	_, list, _ := strings.Cut(outbox.Table{Schema: "public", Name: "outbox"}.InsertSQL(), " (")
	list, _, _ = strings.Cut(list, ")")
	set := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(", \n", r) })
	same(t, "the statement", append(set, "created_at"), Insert())
}
