package relay

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/publish"
)

// hanging is a publisher that can hang in a library: it publishes, says that it is stuck, and does not end.
type hanging struct {
	publish.Publisher
	stuck    atomic.Bool
	returned chan struct{} // its Run returns when this is closed
	ended    chan struct{}
}

func (h *hanging) Run(ctx context.Context, sink publish.Sink) error {
	defer close(h.ended)
	err := h.Publisher.Run(ctx, sink)
	<-h.returned
	return err
}

func (h *hanging) Overdue() time.Duration {
	if h.stuck.Load() {
		return stuckAfter
	}
	return 0
}

// The stream of a stuck relay still moves, and answers the server.
func TestAStuckRelayHandsOverTheSlotAndEndsInTime(t *testing.T) {
	i := newInstance(t)
	i.config.ShutdownTimeout = 100 * time.Millisecond
	publisher := &hanging{Publisher: i.publisher(), returned: make(chan struct{}), ended: make(chan struct{})}
	first, stopFirst := i.startWith(publisher, prometheus.NewRegistry())
	i.await("the first streams", func() bool { return first.Health().Role == "streaming" })
	second, stopSecond := i.start()
	i.await("the second is a standby", func() bool { return second.Health().Role == "standby" })
	publisher.stuck.Store(true)
	if h := first.Health(); h.Live || h.Ready || h.Parts[0].Detail != "has not moved for 1m0s" {
		t.Errorf("a stuck publisher: %+v", h)
	}
	i.await("the first logs it", func() bool { return strings.Contains(first.stuck.Current(), "publisher: has not moved") })
	i.await("the second streams", func() bool { return second.Health().Role == "streaming" })
	i.await("the first is a standby", func() bool { return first.Health().Role == "standby" })
	must(t, i.load(1, 100))
	i.await("all arrive", func() bool { return i.arrived() == 100 })
	stopSecond()
	stopFirst() // although its publisher does not return
	close(publisher.returned)
	<-publisher.ended
	i.await("the first has left nothing behind", func() bool { return first.phase.Load() == phaseStopped })
}
