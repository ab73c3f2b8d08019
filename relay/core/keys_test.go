package core

import (
	"fmt"
	"strings"
	"testing"
)

// TestRememberedKeysAreBounded by their number and by their bytes, and those that are forgotten make room.
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
