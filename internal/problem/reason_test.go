package problem

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestAdviceFitsTheRejection(t *testing.T) {
	none, shop := "", "shop"
	const returned, missing = `NO_ROUTE (312): no queue took the message with routing key "k" from exchange `, "NOT_FOUND - no exchange 'shop' in vhost '/' (404)"
	const queue, bind, declare = "declare a queue with", `bind a queue to the exchange "shop" for`, `declare the exchange "shop" and bind`
	const refused = "access_refused: ACCESS_REFUSED - "
	for _, test := range []struct {
		reason   outbox.Reason
		exchange *string
		detail   string
		fix      string // its begin
	}{
		{outbox.ReasonUnroutable, &none, "", queue},
		{outbox.ReasonUnroutable, nil, "unroutable: " + returned + `""`, queue},
		{outbox.ReasonUnroutable, &shop, `… from exchange ""`, bind},
		{outbox.ReasonUnroutable, nil, "unroutable: " + returned + `"shop"`, bind},
		{outbox.ReasonUnroutable, nil, `… from exchange "x from exchange \"\""`, `bind a queue to the exchange "x from`},
		{outbox.ReasonUnroutable, nil, "", "bind a queue to the exchange for"},
		{outbox.ReasonNoExchange, nil, "exchange_missing: " + missing, declare},
		{outbox.ReasonNoExchange, nil, missing, declare},
		{outbox.ReasonNoExchange, &shop, "", declare},
		{outbox.ReasonRetriesExceeded, nil, "exchange_missing: " + missing, declare},
		{outbox.ReasonRetriesExceeded, nil, "unroutable: " + returned + `"shop"`, bind},
		{outbox.ReasonRetriesExceeded, nil, "nack: RabbitMQ answered", "add consumers"},
		{outbox.ReasonRetriesExceeded, nil, "", ReadError},
		{outbox.ReasonAccessRefused, nil, refused + "write access to exchange 'shop' in vhost '/' refused for user 'u'", `let the relay's RabbitMQ user write to the exchange "shop"`},
		{outbox.ReasonAccessRefused, nil, refused + "write access to topic 'k' in exchange 'shop' in vhost '/'", "let the relay's RabbitMQ user write to the exchange ("},
		{outbox.ReasonRetriesExceeded, nil, "retries_exhausted: x", ReadError},
		{outbox.ReasonAccessRefused, nil, refused + "write access", "let the relay's"},
		{outbox.ReasonAccessRefused, &shop, refused + "write access", `if applications may use the exchange "shop", let`},
		{outbox.ReasonAccessRefused, &shop, refused + "cannot publish to internal exchange 'shop'", "use an exchange that is bound to"},
	} {
		meaning, fix := OfReason(test.reason, test.exchange, test.detail)
		if !strings.HasPrefix(fix, test.fix) || meaning == "" || OneLine(fix) != fix {
			t.Errorf("%s, %s: got %s, %s", test.reason, test.detail, meaning, fix)
		}
	}
	for _, reason := range outbox.Reasons() {
		if meaning, fix := OfReason(reason, nil, ""); meaning == "" || fix == "" {
			t.Errorf("%s has no advice", reason)
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
