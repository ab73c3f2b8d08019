package amqp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/publish"
)

// While the broker blocks the connection, no time passes. Afterwards the remaining time applies. A call that has
// returned ends nothing.
func TestACallIsBoundedAfterABlockedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		s := &session{
			clock: newClock(), progress: progress{sendTimeout: timeout}, ended: make(chan struct{}),
			events: publish.NewMailbox[happened](), throttle: newThrottle(newSendWindow(1, 1)),
		}
		hangs := make(chan struct{})
		s.do("look up queue", func() error { return nil }, func(error) {})
		synctest.Wait()
		s.learn()
		s.do("open channel", func() error {
			<-hangs
			return nil
		}, func(error) {})
		pass := func(d time.Duration) error {
			time.Sleep(d)
			s.tick()
			return s.failure
		}
		if err := pass(timeout / 2); err != nil {
			t.Error(err)
		}
		s.clock.stop()
		if err := pass(10 * timeout); err != nil {
			t.Errorf("while the connection is blocked: %v", err)
		}
		s.clock.resume()
		if err := pass(timeout/2 - time.Millisecond); err != nil {
			t.Error(err)
		}
		if err := pass(time.Millisecond); err == nil || err.Error() != "open channel: no answer within 10s" {
			t.Errorf("the call has no time limit: %v", err)
		}
		close(hangs)
		s.helpers.Wait()
	})
}
