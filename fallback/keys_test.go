package fallback

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// A claim takes a whole page of rows of one key if newer rows replace all of them, and else few, since each waits for
// the confirm of the row before it.
func TestAClaimTakesManyRowsOfAKeyThatNewerRowsReplace(t *testing.T) {
	const page = 500
	replaced, alone := outbox.Candidate{Superseded: true}, outbox.Candidate{}
	for name, test := range map[string]struct {
		last []outbox.Run
		want int
	}{
		"no rows":           {nil, longestRun},
		"replaced rows":     {[]outbox.Run{{replaced, replaced}, {replaced}}, page},
		"one is to be sent": {[]outbox.Run{{replaced, alone}, {replaced}}, longestRun},
	} {
		s := &Sweeper{Page: page}
		s.measure(test.last)
		if got := s.runOf(page, 1); got != test.want {
			t.Errorf("after %s: %d rows, want %d", name, got, test.want)
		}
	}
}
