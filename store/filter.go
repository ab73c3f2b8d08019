package store

import (
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Filter picks rows. All that is set must hold; the zero Filter picks every row.
type Filter struct {
	// IDs and MessageIDs name rows one by one: a row is picked that is in either.
	IDs        []int64
	MessageIDs []outbox.UUID
	RoutingKey *string
	// Exchange: '' picks rows that name none, too.
	Exchange    *string
	OrderingKey *string
	// Reason is a code: that of the dead letter, or the one at the head of last_error.
	Reason *string
	// State picks rows of the outbox by their state; only List knows it.
	State State
	// OlderThan and NewerThan are ages, of a dead letter since its death, of a row in the
	// outbox since it was created; 0: any.
	OlderThan, NewerThan time.Duration
}

// Everything tells that nothing is set.
func (f Filter) Everything() bool {
	return len(f.IDs)+len(f.MessageIDs) == 0 && f.RoutingKey == nil && f.Exchange == nil && f.OrderingKey == nil &&
		f.Reason == nil && f.State == "" && f.OlderThan == 0 && f.NewerThan == 0
}

// Of what a filter picks.
type kind uint8

const (
	ofOutbox kind = iota
	ofDeadLetters
	ofPublished
)

// where is the condition on rows called r, with its arguments appended to those given.
func (f Filter) where(of kind, args []any) (string, []any) {
	var conditions []string
	add := func(format string, values ...any) {
		places := make([]any, len(values))
		for i, value := range values {
			args = append(args, value)
			places[i] = fmt.Sprintf("$%d", len(args))
		}
		conditions = append(conditions, fmt.Sprintf(format, places...))
	}
	born := "r.created_at"
	if of == ofDeadLetters {
		born = "r.dead_at"
	} else if of == ofPublished {
		born = "r.published_at"
	}
	switch ids, messageIDs := f.IDs, uuidsOf(f.MessageIDs); {
	case len(ids) > 0 && len(messageIDs) > 0:
		add("(r.id = ANY(%s::bigint[]) OR r.message_id = ANY(%s::uuid[]))", ids, messageIDs)
	case len(ids) > 0:
		add("r.id = ANY(%s::bigint[])", ids)
	case len(messageIDs) > 0:
		add("r.message_id = ANY(%s::uuid[])", messageIDs)
	}
	if f.RoutingKey != nil {
		add("r.routing_key = %s", *f.RoutingKey)
	}
	if f.Exchange != nil {
		add("coalesce(r.exchange, '') = %s", *f.Exchange)
	}
	if f.OrderingKey != nil {
		add("r.ordering_key = %s", *f.OrderingKey)
	}
	if f.Reason != nil && of == ofDeadLetters {
		add("%[1]s IN (r.failure_reason, split_part(r.last_error, ':', 1))", *f.Reason)
	} else if f.Reason != nil {
		add("split_part(r.last_error, ':', 1) = %s", *f.Reason)
	}
	if f.State != "" {
		add("r.state = %s", string(f.State))
	}
	if f.OlderThan != 0 {
		add(born+" <= (SELECT clock_timestamp()) - %s::interval", f.OlderThan)
	}
	if f.NewerThan != 0 {
		add(born+" > (SELECT clock_timestamp()) - %s::interval", f.NewerThan)
	}
	if len(conditions) == 0 {
		return "true", args
	}
	return strings.Join(conditions, " AND "), args
}

func uuidsOf(ids []outbox.UUID) [][16]byte {
	raw := make([][16]byte, len(ids))
	for i, id := range ids {
		raw[i] = id
	}
	return raw
}
