package outagelog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// TestAnOutageDoesNotFillTheLog: each try has another port in its error, and two parts fail in turn.
func TestAnOutageDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e := New(slog.New(slog.NewTextHandler(&log, nil)), func(err error) (string, string) { return err.Error(), "" })
		for port := range 100 {
			e.Report(event.SweepFailing, "cannot sweep", fmt.Errorf("read rows: read tcp 127.0.0.1:%d->127.0.0.1:5432: connection reset", 40000+port))
			time.Sleep(time.Second)
			e.Report(event.SweepFailing, "cannot sweep", errors.New("scan the table: connection refused"))
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "cannot sweep"); n != 8 {
			t.Errorf("200 failures within 200 seconds made %d lines, want two a minute", n)
		}
		e.Over(event.SweepRecovered, "sweeping again")
		if n := strings.Count(log.String(), "sweeping again"); n != 1 || e.Current() != "" {
			t.Errorf("its end was logged %d times, and %q stays", n, e.Current())
		}
		e.Report(event.SweepFailing, "cannot sweep", errors.New("scan the table: connection refused"))
		if n := strings.Count(log.String(), "cannot sweep"); n != 9 {
			t.Error("the next trouble was not logged at once")
		}
	})
}
