package relay

import (
	"testing"
	"time"

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
