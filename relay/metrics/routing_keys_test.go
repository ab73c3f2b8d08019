package metrics

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestRoutingKeyLabelsAreBounded(t *testing.T) {
	keys, err := newRoutingKeys([]string{"orders.*", "paid"})
	if err != nil {
		t.Fatal(err)
	}
	label := func(key string) string { return keys.valueOf(&outbox.Message{Row: outbox.Row{RoutingKey: key}}) }
	labels := make(map[string]bool)
	for i := range 1000 {
		labels[label(fmt.Sprintf("orders.%d", i))] = true
		labels[label(fmt.Sprintf("invoices.%d", i))] = true
	}
	if len(labels) != mostLabels || label("orders.0") != "orders.0" || label("orders.999") != otherValues || label("paid") != otherValues {
		t.Errorf("%d labels", len(labels))
	}
	if _, err := newRoutingKeys([]string{"a", ""}); err == nil {
		t.Error("an empty pattern was accepted")
	}
}
