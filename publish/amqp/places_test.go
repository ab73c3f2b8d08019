package amqp

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Each message without a place gets a later time, so that they do not all come at once.
func TestMessagesWithoutAPlaceComeOneAfterTheOther(t *testing.T) {
	p := newPlaces(80)
	p.pace = time.Second
	m, now := &outbox.Message{}, time.Now()
	last, back := time.Duration(0), 0
	for range 80 {
		taken, retryIn := p.take(m, now)
		if taken {
			continue
		}
		if back++; retryIn < last || retryIn < soonest || retryIn > latest {
			t.Errorf("%s after %s", retryIn, last)
		}
		last = retryIn
	}
	if p.messages != 30 || back != 50 {
		t.Errorf("%d messages have a place and %d went back, want three eighths of 80", p.messages, back)
	}
	if last < latest-time.Second {
		t.Errorf("the last of 50 comes after %s", last)
	}
	p.leave(m)
	if taken, _ := p.take(m, now); !taken {
		t.Error("a free place was not given")
	}
}

func TestTheBytesThatWaitAreBounded(t *testing.T) {
	p := newPlaces(80)
	p.pace = time.Second
	take := func(m *outbox.Message) bool {
		taken, _ := p.take(m, time.Now())
		return taken
	}
	large := &outbox.Message{Row: outbox.Row{Payload: make([]byte, 20<<20)}}
	if !take(large) {
		t.Error("a message larger than the share never gets a place")
	}
	if take(&outbox.Message{}) {
		t.Error("a place beside it was given")
	}
	if p.leave(large); !take(&outbox.Message{}) {
		t.Error("a free place was not given")
	}
}
