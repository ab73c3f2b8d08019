package amqp

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// While the broker blocks the connection, no time passes. Afterwards the remaining time applies.
func TestACallIsBoundedAfterABlockedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		s := newLink(opened{clock: newClock()}, timeout)
		broken := errors.New("the connection was closed")
		began := time.Now()
		time.AfterFunc(timeout/2, s.clock.stop)
		time.AfterFunc(10*timeout, s.clock.resume)
		err := s.limited("open channel", func() error {
			select {
			case <-s.lost:
			case <-time.After(100 * timeout):
				t.Error("the call had no time limit")
			}
			return broken
		})
		if !errors.Is(err, broken) {
			t.Error(err)
		}
		if took := time.Since(began); took < 10*timeout+timeout/2 || took > 12*timeout {
			t.Errorf("the connection was closed after %v", took)
		}
	})
}

func TestACallThatReturnedDoesNotEndTheConnectionLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newLink(opened{clock: newClock()}, time.Second)
		if err := s.limited("open channel", func() error { return nil }); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if len(s.lost) > 0 {
			t.Error("the connection was closed for a call that had returned")
		}
	})
}
