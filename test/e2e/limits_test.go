package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// long tells that the tests of limits run at the size that is promised, not at the small one
// that every run can afford.
func long() bool { return os.Getenv("CDC_RELAY_LONG") == "1" }

// sized is one of two sizes.
func sized[T any](usual, full T) T {
	if long() {
		return full
	}
	return usual
}

// promised is how long a test lets something take that docs/guarantees.md promises within a time:
// to the letter with CDC_RELAY_LONG=1. The usual run has several packages side by side, with the
// race detector, on machines of two cores: there it is several times as long, which still tells a
// relay that goes on from one that waits for a timeout.
func promised(most time.Duration) time.Duration { return sized(5*most, most) }

func needsLong(t *testing.T) {
	t.Helper()
	if !long() {
		t.Skip("takes minutes; set CDC_RELAY_LONG=1")
	}
}

// plainly builds the relay without the race detector, which takes several times the memory and
// the time.
func (w *world) plainly() *world {
	w.t.Helper()
	var err error
	if w.binary, err = build("cdc-relay-plain", false); err != nil {
		w.t.Fatal(err)
	}
	return w
}

// says tells whether a page has a line that begins so.
func (r *relay) says(path, line string) bool {
	page, _ := r.get(path)
	return strings.Contains("\n"+page, "\n"+line)
}
