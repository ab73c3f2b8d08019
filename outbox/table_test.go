package outbox_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestCommandNamesATableOtherThanTheDefault(t *testing.T) {
	for table, want := range map[string]string{
		"outbox":       "cdc-relay setup",
		`sales."It's"`: `cdc-relay setup --table 'sales."It'\''s"'  # with the relay's own --slot and --publication`,
	} {
		parsed, err := outbox.ParseTable(table)
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.Command("setup"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
