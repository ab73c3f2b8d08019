package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// TestRememberedKeysAreBounded covers the bounds on number and bytes, and that forgotten keys make room.
func TestRememberedKeysAreBounded(t *testing.T) {
	for name, length := range map[string]int{"short": 10, "long": 2684} {
		t.Run(name, func(t *testing.T) {
			const most = 10_000
			o := newKeys(most)
			key := func(n int) string { return fmt.Sprintf("%0*d", length, n) }
			remembered := 0
			for o.remember(key(remembered)) != nil {
				remembered++
			}
			if want := min(most, mostKeyBytes/length); remembered != want {
				t.Errorf("%d keys are remembered, want %d", remembered, want)
			}
			if o.remember(strings.Repeat("x", length)) != nil {
				t.Error("one more is remembered")
			}
			for n := range remembered {
				o.drop(key(n))
			}
			if o.bytes != 0 || o.remember(key(0)) == nil {
				t.Errorf("%d bytes are left of none", o.bytes)
			}
		})
	}
}

// TestAPassParksNoKeyThatIsWanted: the pass may have read the head before the look-up was requested.
func TestAPassParksNoKeyThatIsWanted(t *testing.T) {
	c := New(DefaultLimits(100))
	c.PublisherReady(true)
	c.TookSlot(Slot{})
	key := "k"
	postponed := outbox.Candidate{Ref: outbox.Ref{ID: 1}, OrderingKey: &key, Due: time.Now().Add(time.Hour)}
	read := func(asked []string) {
		c.Found(asked, []outbox.Run{{postponed}}, outbox.Snapshot{}, c.View().Epoch, 1)
	}
	wanted := func(what string, want ...string) {
		t.Helper()
		if taken := c.TakeWanted(10); !slices.Equal(taken, want) {
			t.Errorf("%s: %v are looked up, want %v", what, taken, want)
		}
	}
	late := &outbox.Message{ID: 1, OrderingKey: &key}
	c.mu.keys.add(key, &keyState{place: behind, flying: late})
	c.mu.keys.landed(late) // the pass read the row before it was deleted
	read(nil)
	wanted("its row was settled meanwhile", key)
	read([]string{key})
	wanted("its row must not leave yet")
	read(nil)
	wanted("that is known already")
}

// TestAClaimLeavesRoomThatTheStreamHasTaken: the stream fills the window while the claim looks for rows.
func TestAClaimLeavesRoomThatTheStreamHasTaken(t *testing.T) {
	const window = 8
	c := New(DefaultLimits(window))
	c.PublisherReady(true)
	c.TookSlot(Slot{})
	c.Owned(time.Now())
	rows, bytes := c.Capacity(4)
	for id := range int64(window - 1) {
		if m, v := c.Streamed(&outbox.Message{ID: 100 + id, XID: 1}, 100, false); m == nil {
			t.Fatalf("row %d of %d is not published: %d", id, window, v)
		}
	}
	var found []outbox.Candidate
	for id := range int64(rows) {
		found = append(found, outbox.Candidate{Ref: outbox.Ref{ID: id}, Ready: true})
	}
	c.Begin(found, rows, bytes)
	if n := c.InFlight(); n > window {
		t.Errorf("%d messages are in a window of %d", n, window)
	}
}
