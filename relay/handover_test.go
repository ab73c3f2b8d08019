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

// A leader leaves the slot to a standby only if that can help. Two relays with the same trouble would pass it round.
func TestTheLeaderHandsOverOnlyIfThatCanHelp(t *testing.T) {
	const connecting, ready, blocked = publish.Connecting, publish.Ready, publish.Blocked
	for name, c := range map[string]struct {
		phases  []publish.Phase // one each second, from the moment when it took the slot
		answers int
		want    int // the second in which it hands over, -1: never
	}{
		"cut off":                          {repeated(connecting, 60), 1, 6},
		"paused":                           {repeated(publish.Paused, 60), 1, 6},
		"blocked":                          {repeated(blocked, 100), 1, -1},
		"connected now and then":           {append(repeated(connecting, 5), append(repeated(ready, 1), repeated(connecting, 5)...)...), 1, -1},
		"connected, and without answers":   {repeated(ready, 100), 0, -1},
		"no answer since it took the lead": {append(repeated(ready, 1), repeated(connecting, 100)...), 0, 61},
		"took the lead without a broker":   {repeated(connecting, 100), 0, 6},
	} {
		took := time.Now()
		b, got := brokerOutage{took: took, answers: 7}, -1
		for second, phase := range c.phases {
			if b.handsOver(phase, 7+c.answers, took.Add(time.Duration(second)*time.Second)) {
				got = second
				break
			}
		}
		if got != c.want {
			t.Errorf("%s: hands over in second %d, want %d", name, got, c.want)
		}
	}
}

func repeated(phase publish.Phase, times int) (all []publish.Phase) {
	for range times {
		all = append(all, phase)
	}
	return all
}

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
	i.load(100)
	i.await("all arrive", func() bool { return i.arrived() == 100 })
	stopSecond()
	stopFirst() // although its publisher does not return
	close(publisher.returned)
	<-publisher.ended
	i.await("the first has left nothing behind", func() bool { return first.phase.Load() == phaseStopped })
}
