package relay

import (
	"errors"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/publish"
)

// stuck is the phase of a publisher whose relay is not live.
const stuck publish.Phase = 0

// phaseForLead is the publisher's phase, or stuck. A stuck relay must not lead, although its session may still move.
func (r *Relay) phaseForLead() publish.Phase {
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
