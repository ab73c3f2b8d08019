package relay

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A missing queue rejects many messages. The log says how many lines it leaves out, and another reason has its own.
func TestManyMessagesDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lines
		var mu sync.Mutex // the timer's goroutine writes, too
		var written []string
		message := func(kind string, id int) {
			l.write(kind, func(leftOut int) {
				mu.Lock()
				defer mu.Unlock()
				written = append(written, fmt.Sprintf("%s %d left out %d", kind, id, leftOut))
			})
		}
		wrote := func(when string, want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(written, want) {
				t.Errorf("%s: got %q, want %q", when, written, want)
			}
			written = nil
		}
		for id := range 1423 {
			message("unroutable", id)
		}
		mu.Lock()
		if len(written) != firstLines {
			t.Errorf("%d lines at once", len(written))
		}
		written = nil
		mu.Unlock()
		message("nack", 1)
		wrote("another reason", "nack 1 left out 0")
		time.Sleep(linesEvery + time.Second) // of the bubble's clock
		synctest.Wait()
		wrote("later", "unroutable 1422 left out 1412")
		message("unroutable", 2000)
		wrote("a calm one", "unroutable 2000 left out 0")
		message("unroutable", 2001)
		message("unroutable", 2002)
		l.flush()
		wrote("at the end", "unroutable 2002 left out 1")
		for kind := range 2 * mostKinds {
			message(fmt.Sprint(kind), 1)
		}
		if len(l.mu.of) > mostKinds+1 {
			t.Errorf("%d kinds", len(l.mu.of))
		}
		l.flush()
	})
}
