package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// long reports whether the tests of limits run at the promised size instead of a small one.
func long() bool { return os.Getenv("CDC_RELAY_LONG") == "1" }

// sized returns one of two sizes.
func sized[T any](usual, full T) T {
	if long() {
		return full
	}
	return usual
}

// promised scales a time that docs/guarantees.md promises: it is exact with CDC_RELAY_LONG=1. The usual run has several
// packages side by side, with the race detector, on two cores. There it allows several times as long, which still
// detects a relay that waits for a timeout.
func promised(most time.Duration) time.Duration { return sized(5*most, most) }

func needsLong(t *testing.T) {
	t.Helper()
	if !long() {
		t.Skip("takes minutes; set CDC_RELAY_LONG=1")
	}
}

// plainly builds the relay without the race detector, which needs several times the memory and the time.
func (w *world) plainly() *world {
	w.t.Helper()
	var err error
	if w.binary, err = build("cdc-relay-plain", false); err != nil {
		w.t.Fatal(err)
	}
	return w
}

// says reports whether a page has a line with this beginning.
func (r *relay) says(path, line string) bool {
	page, _ := r.get(path)
	return strings.Contains("\n"+page, "\n"+line)
}
