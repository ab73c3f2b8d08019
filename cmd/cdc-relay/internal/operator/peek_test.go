package operator_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestPeekShowsTheOrderInWhichMessagesLeave(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox ADD nth text; ALTER TABLE outbox ADD "The Tenant" integer`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at, expires_at, coalesce_key, schema_version, nth, "The Tenant") VALUES
		('r', '1', 'later', '2090-01-01', NULL, NULL, 1, NULL, NULL), ('r', '1', 'later', NULL, NULL, NULL, 1, NULL, NULL), -- 1, 2
		('s', '1', NULL, NULL, NULL, NULL, 1, NULL, NULL), ('r', '1', 'free', NULL, NULL, NULL, 1, NULL, NULL), -- 3, 4
		('r', '1', 'free', '2080-01-01', NULL, NULL, 1, NULL, NULL), ('r', '1', 'free', now() - interval '1 hour', NULL, NULL, 1, NULL, NULL), -- 5, 6
		('r', '1', NULL, '2070-01-01', NULL, NULL, 1, NULL, NULL), ('r', '1', NULL, now() - interval '1 hour', NULL, NULL, 1, 'a', 7), -- 7, 8
		('r', '1', NULL, NULL, '2020-01-01', NULL, 1, NULL, NULL), ('r', '1', NULL, NULL, NULL, 'c', 1, NULL, NULL), -- expired 9, replaced 10
		('r', '1', NULL, NULL, NULL, 'c', 1, NULL, NULL), ('r', '1', NULL, NULL, NULL, NULL, 2, NULL, NULL), -- 11, newer version 12
		('r', '1', 'dead', NULL, NULL, NULL, 1, NULL, NULL), ('r', '1', NULL, 'infinity', NULL, NULL, 1, NULL, NULL) -- 13, 14
	`)
	f.DeadLetter(1000, "nack", "ordering_key", "'dead'")
	o := f.operator()
	before := f.IDs("xmax = '0' AND possible_duplicate IS NULL")
	for _, test := range []struct {
		filter operator.Filter
		block  bool
		want   string
	}{
		{operator.Filter{}, false, "[3 4 8 11 13 7 5 1 14 2 6]"},
		{operator.Filter{}, true, "[3 4 8 11 7 5 1 14 2 6 13]"},
		{operator.Filter{OrderingKey: text("free")}, true, "[4 5 6]"},
		{operator.Filter{RoutingKey: pattern("s")}, false, "[3]"},
		{operator.Filter{RoutingKey: pattern("none")}, false, "[]"},
	} {
		for limit := 1; limit < 14; limit++ {
			got := idsOfPages(t, limit, func(p operator.Page) (operator.Listing[operator.Peeked], error) {
				return o.Peek(t.Context(), test.filter, p, test.block, []string{"nth", "The Tenant"}, true)
			}, func(m operator.Peeked) int64 { return m.ID })
			if fmt.Sprint(got) != test.want {
				t.Errorf("%+v by %d: %v, want %s", test.filter, limit, got, test.want)
			}
		}
	}
	if after := f.IDs("xmax = '0' AND possible_duplicate IS NULL"); fmt.Sprint(after) != fmt.Sprint(before) || len(after) != 14 {
		t.Errorf("rows changed: untouched are %v, before %v", after, before)
	}

	list, err := o.Peek(t.Context(), operator.Filter{}, operator.Page{Limit: 3}, false, []string{"nth", "The Tenant"}, true)
	if err != nil || len(list.Rows) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	headers := []outbox.Header{{Name: "nth", Value: "a"}, {Name: "The Tenant", Value: int64(7)}}
	if m := list.Rows[2]; m.State != operator.Due || fmt.Sprint(m.Extra) != fmt.Sprint(headers) || string(m.Payload) != "1" || m.Redacted != nil {
		t.Errorf("got %+v, %+v", m, m.Message)
	}
	if _, err := o.Peek(t.Context(), operator.Filter{OrderingKey: text("free")}, operator.Page{After: list.Next, Limit: 1}, false, nil, true); !errors.Is(err, operator.ErrCursor) {
		t.Errorf("the cursor of another list: %v", err)
	}
	if list, err := o.Peek(t.Context(), operator.Filter{}, operator.Page{Limit: 11}, false, nil, true); err != nil || list.Next != "" {
		t.Errorf("after a page that is exactly full: %+v, %v", list.Next, err)
	}
}
