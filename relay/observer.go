package relay

import (
	"encoding/json"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/celery"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/store"
)

// observer tells all who watch messages about their results and rows: the outage detection, the metrics, the tracer,
// the hooks, and the log. All methods may be called concurrently.
type observer struct {
	unanswered *unanswered
	counts     *metrics.Metrics
	tracer     Tracer // nil: none
	hooks      *hooks
	log        *slog.Logger
	table      outbox.Table
	// headers are the names of the headers that these lines show.
	headers []string

	// drains: a row without an answer does not wait, so that it stays due until the drain ends.
	drains bool
	// written counts the rows settled so far: deleted, moved, or with one more attempt.
	written atomic.Int64
}

// result is called with each result, before the core gets it: the core changes the mark of the message. The core gets
// the result that it returns. Marked is for decided.
func (o *observer) result(r outbox.Result) (seen outbox.Result, marked bool) {
	r = o.unanswered.result(r)
	o.counts.Result(r)
	if o.drains && r.Reason == "" {
		r.RetryIn = 0
	}
	if o.tracer != nil {
		o.tracer.Delivered(r)
	}
	return r, markedAs(r)
}

// decided is called with the core's decision on a result.
func (o *observer) decided(r outbox.Result, decision outbox.Decision, marked bool) {
	o.hooks.result(r, decision, marked)
}

// settled is called with the rows of one batch of the settler.
func (o *observer) settled(s store.Settled, took time.Duration) {
	settled := len(s.Done) + len(s.Gone)
	o.log.Debug("deleted or updated rows", "rows", settled,
		"not_visible", len(s.NotVisible), "locked", len(s.Locked), "took", took.Round(time.Microsecond))
	for _, one := range s.Done {
		o.counts.Written(one)
		switch one.Decision.Action {
		case outbox.DeadLetter:
			o.hooks.moved(one)
			o.deadLettered(one)
		case outbox.Retry:
			o.rejected(one)
		}
	}
	o.written.Add(int64(settled))
	o.counts.Settled(settled, took)
}

func (o *observer) deadLettered(one outbox.Settlement) {
	m := one.Message
	hint := problem.Command(o.table, "explain", strconv.FormatInt(m.ID, 10)) + "  # says what to fix; then resend it"
	o.log.With(o.headersOf(m)...).Error("message dead-lettered: not retried until it is resent",
		"event", event.MessageDeadLettered, "id", m.ID, "message_id", m.MessageID.String(),
		"routing_key", outbox.Shortened(m.RoutingKey), "reason", string(one.Decision.Reason),
		"error", one.Decision.Detail, "hint", hint)
}

func (o *observer) rejected(one outbox.Settlement) {
	m := one.Message
	if one.Decision.Reason == "" {
		return // unanswered has logged it, or the publisher had no room
	}
	attempts, hint := m.Attempts, []any(nil)
	if one.Rejected {
		attempts = m.NextAttempts()
		if _, fix := problem.OfReason(one.Decision.Reason, m.Exchange, one.Decision.Detail); fix != "" {
			again := problem.Command(o.table, "resend", strconv.FormatInt(m.ID, 10))
			hint = []any{"hint", "# " + fix + "; to try again at once: " + again}
		}
	}
	o.log.With(o.headersOf(m)...).Warn("message rejected: retrying later", append([]any{
		"event", event.MessageRejected, "id", m.ID, "message_id", m.MessageID.String(), "routing_key", m.RoutingKey,
		"attempts", attempts, "retry_in", one.Decision.Delay.Round(time.Millisecond), "error", one.Decision.Detail,
	}, hint...)...)
}

// setAside is called once for each row that can be neither deleted nor updated, with the reason.
func (o *observer) setAside(m *outbox.Message, err error, hint string) {
	o.counts.SetAside()
	o.log.Error("row set aside: the database does not let it be changed; other rows unaffected",
		"event", event.RowSetAside, "id", m.ID, "message_id", m.MessageID.String(),
		"error", pgdial.Text(err), "hint", hint)
}

// headersOf are those headers of a message that its log lines show, as attributes. The names are the headers' own.
func (o *observer) headersOf(m *outbox.Message) (attributes []any) {
	values := namedHeaders(m.Headers, o.headers)
	for _, name := range o.headers {
		if value, there := values[name]; there {
			attributes = append(attributes, name, value)
		}
	}
	return attributes
}

// namedHeaders returns the values of the named headers as text, without those that repeat the body; nil: none.
func namedHeaders(raw []byte, names []string) map[string]string {
	var headers map[string]json.RawMessage
	if len(names) == 0 || len(raw) == 0 || json.Unmarshal(celery.HideBody(raw), &headers) != nil {
		return nil // of headers that are no JSON object, the error of the message tells
	}
	var found map[string]string
	for _, name := range names {
		value, there := headers[name]
		if !there {
			continue
		}
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		if found == nil {
			found = map[string]string{}
		}
		found[name] = outbox.Shortened(text)
	}
	return found
}
