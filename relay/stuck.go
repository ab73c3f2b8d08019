package relay

import "github.com/cdc-relay/cdc-relay/publish"

// stuck is the phase of a publisher whose relay is not live.
const stuck publish.Phase = 0

// phaseForSlot is the publisher's phase, or stuck. The stream of a stuck relay may still move, and keep a slot whose
// rows nobody publishes.
func (r *Relay) phaseForSlot() publish.Phase {
	if !r.Health().Live {
		return stuck
	}
	return r.publisherState().Phase
}
