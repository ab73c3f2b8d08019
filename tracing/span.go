package tracing

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Delivered records the span of one attempt, if the message carries a traceparent and was sent. It does not block:
// spans that the exporter cannot keep up with are dropped.
func (t *Tracer) Delivered(r outbox.Result) {
	m := r.Message
	if r.Outcome == outbox.NotSent {
		return
	}
	ctx, ok := t.parent(m.Headers)
	if !ok {
		return
	}
	now := time.Now()
	_, span := t.tracer.Start(ctx, "publish "+t.exchangeOf(m),
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(began(m, now)))
	defer span.End(trace.WithTimestamp(now))
	if !span.IsRecording() {
		return
	}
	t.describe(span, r)
	if !m.TakenAt.IsZero() {
		span.AddEvent("taken", trace.WithTimestamp(m.TakenAt))
	}
	if !m.SentAt.IsZero() {
		span.AddEvent("sent", trace.WithTimestamp(m.SentAt))
	}
}

// began returns the time of the commit if known, or else the time when the relay read the row. The commit's clock is
// the database's and can be ahead.
func began(m *outbox.Message, now time.Time) time.Time {
	at := now
	for _, earlier := range []time.Time{m.CommittedAt, m.TakenAt, m.SentAt} {
		if !earlier.IsZero() && earlier.Before(at) {
			at = earlier
		}
	}
	return at
}

// parent reads traceparent and tracestate from the headers.
func (t *Tracer) parent(headers []byte) (context.Context, bool) {
	if !bytes.Contains(headers, []byte(`"traceparent"`)) {
		return nil, false
	}
	var sent struct {
		TraceParent string `json:"traceparent"`
		TraceState  string `json:"tracestate"`
	}
	if json.Unmarshal(headers, &sent) != nil {
		return nil, false
	}
	ctx := t.propagator.Extract(context.Background(),
		propagation.MapCarrier{"traceparent": sent.TraceParent, "tracestate": sent.TraceState})
	return ctx, trace.SpanContextFromContext(ctx).IsValid()
}

// exchangeOf names the exchange for people.
func (t *Tracer) exchangeOf(m *outbox.Message) string {
	exchange := t.defaultExchange
	if m.Exchange != nil {
		exchange = *m.Exchange
	}
	if exchange == "" {
		return "amq.default"
	}
	return outbox.Shortened(exchange)
}

// describe adds the attributes of the semantic conventions for messaging, and the outcome.
func (t *Tracer) describe(span trace.Span, r outbox.Result) {
	m := r.Message
	exchange, key := t.exchangeOf(m), outbox.Shortened(m.RoutingKey)
	destination := exchange + ":" + key
	switch {
	case key == "":
		destination = exchange
	case exchange == "amq.default":
		destination = key // it delivers to the queue with this name
	}
	span.SetAttributes(
		semconv.MessagingSystemRabbitMQ, semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("publish"),
		semconv.MessagingDestinationName(destination), semconv.MessagingRabbitMQDestinationRoutingKey(key),
		semconv.MessagingMessageID(m.MessageID.String()), semconv.MessagingMessageBodySize(len(m.Payload)),
		attribute.String("cdc_relay.outcome", r.Outcome.String()),
		attribute.Int64("cdc_relay.row_id", m.ID),
		attribute.Int("cdc_relay.attempts", m.Attempts),
		attribute.Bool("cdc_relay.possible_duplicate", r.MaybeSent || m.WasMarked()),
	)
	if r.Outcome == outbox.Confirmed {
		return
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(cmp.Or(string(r.Reason), r.Outcome.String())))
	span.SetStatus(codes.Error, r.Detail)
}
