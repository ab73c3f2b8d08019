package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
)

const (
	// handOverAfter is how long the leader is without a broker connection before it leaves the slot to a ready standby.
	handOverAfter = 5 * time.Second
	// keepAtLeast is how long a new leader keeps the slot while nothing is answered: the leader before it may have left
	// it because of the same outage.
	keepAtLeast = time.Minute
)

var errHandedOver = errors.New("a standby can publish, and this relay cannot")

// brokerOutage records when the publisher lost its connection.
type brokerOutage struct {
	began   time.Time
	took    time.Time // the slot
	answers int       // until then
}

// handsOver reports whether a standby may do better. It would not with a broker that blocks publishers, or that does
// not answer on a connection: that is so for all relays.
func (b *brokerOutage) handsOver(phase publish.Phase, answers int, now time.Time) bool {
	switch {
	case phase == publish.Ready || phase == publish.Blocked:
		b.began = time.Time{}
	case b.began.IsZero():
		b.began = now
	default:
		return now.Sub(b.began) > handOverAfter && (answers > b.answers || now.Sub(b.took) > keepAtLeast)
	}
	return false
}

// standbyIsReady reports whether a standby waits for the slot that can publish.
func (s *streamer) standbyIsReady(ctx context.Context) (ready bool) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := s.store.Conn(ctx, func(conn *pgx.Conn) (err error) {
		ready, err = replication.ReadyStandby(ctx, conn.PgConn(), s.names.Slot)
		return err
	})
	return err == nil && ready
}
