package problem

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestAdviceForAnUnroutableMessageFitsItsExchange(t *testing.T) {
	none, shop := "", "shop"
	for _, test := range []struct {
		exchange *string
		detail   string
		queue    bool
	}{
		{&none, "", true},
		{&none, "unroutable: NO_ROUTE", true},
		{nil, `unroutable: NO_ROUTE (312): no queue took the message with routing key "k" from exchange ""`, true},
		{&shop, `… from exchange ""`, false},
		{nil, `unroutable: NO_ROUTE (312): no queue took the message with routing key "k" from exchange "shop"`, false},
		{nil, `… from exchange "x from exchange \"\""`, false},
		{nil, "", false},
	} {
		meaning, fix := OfReason(outbox.ReasonUnroutable, test.exchange, test.detail)
		if strings.Contains(fix, "create a queue") != test.queue || strings.Contains(fix, "bind") == test.queue || meaning == "" {
			t.Errorf("%v, %s: got %s, %s", test.exchange, test.detail, meaning, fix)
		}
	}
}

func TestCommandNamesATableOtherThanTheDefault(t *testing.T) {
	for table, want := range map[string]string{
		"outbox":       "cdc-relay setup",
		`sales."It's"`: `cdc-relay setup --table 'sales."It'\''s"'  # with the relay's own --slot and --publication`,
	} {
		parsed, err := outbox.ParseTable(table)
		if err != nil {
			t.Fatal(err)
		}
		if got := Command(parsed, "setup"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
