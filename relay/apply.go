package relay

import (
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// apply does what the core has decided. It is the only caller of the publisher's Publish.
func (r *Relay) apply(out core.Out) {
	r.settler.pending.add(out.Settle, out.Soon)
	for publish := out.Publish; len(publish) > 0; { // not a recursion: a key may have thousands of defective messages
		var next []*outbox.Message
		for _, m := range publish {
			reason, detail := m.Defect(time.Now())
			if reason == "" {
				r.config.AddOrderingKey(m)
				r.awaited.sent(m)
				r.publisher.Publish(m)
				continue
			}
			after := r.resolved(outbox.Result{Message: m, Outcome: outbox.Impossible, Reason: reason, Detail: detail})
			r.settler.pending.add(after.Settle, after.Soon)
			next = append(next, after.Publish...)
		}
		publish = next
	}
}

// Deliver implements publish.Sink. Custom publishers may break the contract: only the first result of a message that
// was published counts.
func (r *Relay) Deliver(result outbox.Result) {
	if !r.awaited.answered(result.Message) {
		r.log.Error("result ignored: the publisher delivers it for a message that it does not have",
			"event", event.ResultIgnored, "outcome", result.Outcome.String())
		return
	}
	r.apply(r.resolved(result))
}

// resolved passes a result to the core, and to all who watch results.
func (r *Relay) resolved(result outbox.Result) core.Out {
	result, marked := r.observer.result(result)
	out, decision := r.core.Resolved(result)
	r.observer.decided(result, decision, marked)
	return out
}
