package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
)

// handOverAfter is how long the leader is without a broker connection before it leaves the slot to a ready standby.
const handOverAfter = 5 * time.Second

var errHandedOver = errors.New("a standby can publish, and this relay cannot reach RabbitMQ")

// brokerOutage records when the publisher lost its connection.
type brokerOutage struct{ began time.Time }

// since returns for how long. A broker that blocks publishers does not count: it blocks all relays.
func (b *brokerOutage) since(phase publish.Phase, now time.Time) time.Duration {
	switch {
	case phase == publish.Ready || phase == publish.Blocked:
		b.began = time.Time{}
	case !b.began.IsZero():
		return now.Sub(b.began)
	default:
		b.began = now
	}
	return 0
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
