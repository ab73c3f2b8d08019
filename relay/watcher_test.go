package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestAStreamThatLagsIsReportedUntilItCatchesUp(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	s := &streamer{names: provision.Names{Table: tabletest.Name(), Slot: "s"}, log: logger, progress: streamProgress{behind: newOutageLog(logger, pgdial.Address{})}}
	said := func() string {
		defer log.Reset()
		return log.String()
	}
	s.lags(true, 1, 2)
	if text := said(); text != "" {
		t.Errorf("while the server reads older WAL: %s", text)
	}
	s.lags(false, 2, 2)
	s.progress.caughtUp.Store(true)
	for range 3 {
		s.lags(true, 0x10, 0x20)
	}
	text := said()
	if strings.Count(text, "\n") != 1 {
		t.Errorf("want one line:\n%s", text)
	}
	for _, want := range []string{"event=stream_lagging", "0/10", "0/20", "hint=\"cdc-relay check "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	s.lags(false, 0x30, 0x20)
	if text := said(); strings.Count(text, "event=stream_caught_up") != 1 || !strings.Contains(text, "after=") {
		t.Errorf("after it caught up: %s", text)
	}
}

// The stream is then silent, as if nobody wrote.
func TestAChangedPublicationIsRepaired(t *testing.T) {
	t.Parallel()
	i := newInstance(t)
	r, stop := i.start()
	defer stop()
	name := i.config.Names().Publication
	for _, change := range []string{
		`ALTER PUBLICATION %s SET (publish = 'delete')`, `ALTER PUBLICATION %s SET TABLE outbox_dead_letter`, `DROP PUBLICATION %s`,
	} {
		i.await("the relay streams", func() bool { return r.Health().Role == "streaming" })
		i.exec(fmt.Sprintf(change, name))
		i.await("the publication is repaired after "+change, func() (repaired bool) {
			must(t, i.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_publication_tables t JOIN pg_publication p USING (pubname)
				WHERE pubname = $1 AND tablename = 'outbox' AND pubinsert)`, name).Scan(&repaired))
			return repaired
		})
	}
}
