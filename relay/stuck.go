package relay

import (
	"errors"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/publish"
)

// stuck is the phase of a publisher whose relay is not live.
const stuck publish.Phase = 0

// phaseForSlot is the publisher's phase, or stuck. The stream of a stuck relay may still move, and keep a slot whose
// rows nobody publishes.
func (r *Relay) phaseForSlot() publish.Phase {
	health, still := r.Health(), []string(nil)
	for _, part := range health.Parts {
		if !part.Live {
			still = append(still, part.Name+": "+part.Detail)
		}
	}
	if !health.Live {
		r.stuck.Report(event.RelayStuck, "relay stuck: rows wait in the table until this process is restarted",
			errors.New(strings.Join(still, ", ")))
		return stuck
	}
	r.stuck.End()
	return r.publisherState().Phase
}
