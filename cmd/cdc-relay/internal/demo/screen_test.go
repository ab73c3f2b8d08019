package demo

import (
	"bytes"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestWithoutATerminalTheScreenIsPlainLines(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(terminal.New(nil, &out, &out, false))
	numbers := summary{counts{sent: 2, arrived: 1, repeated: 1}, time.Millisecond, 2 * time.Millisecond, time.Second}
	s.begin(tabletest.Name(), "db\x1b", "q")
	s.live(numbers)
	s.arrival(sentOrder{id: 7, text: "tea"}, 1500*time.Microsecond, numbers)
	s.note("a note")
	s.end(numbers)
	const want = `Each order is inserted, committed, published and received here.
from public.outbox at db\x1b
through queue q; Ctrl-C ends it

     #7  tea                                              1.5 ms  (p50 1.0 ms, p99 2.0 ms)
a note

2 sent, 1 arrived, 1 of them twice; commit to arrival: p50 1.0 ms, p99 2.0 ms, slowest 1000.0 ms
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
