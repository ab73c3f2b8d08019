package outbox_test

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
		meaning, fix := outbox.ReasonUnroutable.Advice(test.exchange, test.detail)
		if strings.Contains(fix, "create a queue") != test.queue || strings.Contains(fix, "bind") == test.queue || meaning == "" {
			t.Errorf("%v, %s: got %s, %s", test.exchange, test.detail, meaning, fix)
		}
	}
}
