package history

import (
	"bytes"
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestEffectIsThatOfTheMessages(t *testing.T) {
	const told = "1ms tx 1: a key k 1, b key k 2, c, d unroutable\n2ms tx 1 committed\n"
	of := func(events string) []string {
		s := story{events: told + events}
		effect, err := Effect(bytes.NewReader(s.lines(t, make(map[outbox.UUID]string))))
		if err != nil {
			t.Fatal(err)
		}
		return effect
	}
	want := of("3ms a arrives\n4ms b arrives\n5ms c arrives\n6ms d in dead_letter attempts 3 retries")
	for events, same := range map[string]bool{
		"3ms c arrives\n4ms a arrives\n5ms b arrives\n6ms a arrives marked\n9ms d in dead_letter attempts 3 retries": true,
		"3ms b arrives\n4ms a arrives\n5ms c arrives\n6ms d in dead_letter attempts 3 retries":                       false,
		"3ms a arrives\n4ms b arrives\n6ms d in dead_letter attempts 3 retries":                                      false,
		"3ms a arrives\n4ms b arrives\n5ms c arrives\n6ms d in dead_letter attempts 2 retries":                       false,
		"3ms a arrives\n4ms b arrives\n5ms c arrives damaged x\n6ms d in dead_letter attempts 3 retries":             false,
	} {
		if got := of(events); slices.Equal(got, want) != same {
			t.Errorf("%s\ngives %q, and the first run gave %q", events, got, want)
		}
	}
}
