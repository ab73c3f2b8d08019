package relay

import (
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/publish"
)

const (
	// handOverAfter is how long the leader is without a broker connection before it leaves the lead to a ready standby.
	handOverAfter = 5 * time.Second
	// keepAtLeast is how long a new leader that could publish keeps the lead while nothing is answered: the one before
	// it may have left it because of the same outage.
	keepAtLeast = time.Minute
)

var errHandedOver = errors.New("a standby can publish, and this relay cannot")

// brokerOutage records when the publisher lost its connection.
type brokerOutage struct {
	began   time.Time
	took    time.Time // the lead
	answers int       // until then
	ready   bool      // it could publish since
}

// handsOver reports whether a standby may do better. It would not with a broker that blocks publishers, or that does
// not answer on a connection: that is so for all relays.
func (b *brokerOutage) handsOver(phase publish.Phase, answers int, now time.Time) bool {
	switch {
	case phase == publish.Ready || phase == publish.Blocked:
		b.began, b.ready = time.Time{}, true
	case b.began.IsZero():
		b.began = now
	default:
		return now.Sub(b.began) > handOverAfter && (!b.ready || answers > b.answers || now.Sub(b.took) > keepAtLeast)
	}
	return false
}
