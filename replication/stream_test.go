package replication_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/streamtest"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestStreamStartsAtTheCurrentWALPosition(t *testing.T) {
	f := streamtest.New(t)
	f.Setup()
	early := tabletest.Begin(t, tabletest.Connect(t, f.URL), `INSERT INTO outbox VALUES (50)`)
	f.Exec(`INSERT INTO outbox VALUES (49)`) // committed before the start
	before := position(f)
	l := f.Listen()
	if after := position(f); l.At < before || l.At > after {
		t.Errorf("start %s, the server's position was between %s and %s", l.At, before, after)
	}
	tabletest.End(t, early.Commit)
	f.Exec(`INSERT INTO outbox VALUES (51)`)
	f.WantInserted(l, "2", "3")
}

func position(f *streamtest.Fixture) pglogrepl.LSN {
	f.Helper()
	position, _, err := new(replication.Commits).Ask(f.Context(), f.Conn.PgConn())
	services.Must(f, err)
	return position
}

func TestIdleStreamConfirmsTheWALOfOtherTables(t *testing.T) {
	f := streamtest.New(t)
	f.Setup()
	f.Listen()
	f.Exec(`INSERT INTO other SELECT generate_series(1, 10000)`)
	f.Await(`SELECT confirmed_flush_lsn >= '` + position(f).String() + `' FROM pg_replication_slots WHERE slot_name = '` + f.Source.Slot + `'`)
}

func TestPositionsIncreaseAndReachEveryCommit(t *testing.T) {
	f := streamtest.New(t)
	f.Setup()
	f.Exec(`INSERT INTO other SELECT generate_series(1, 20000)`) // the server reads this before the start
	l := f.Listen()
	for range 20 {
		f.Exec(`INSERT INTO outbox VALUES (49); INSERT INTO other SELECT generate_series(1, 100); DELETE FROM outbox`)
	}
	end := position(f)
	last := l.At
	for last < end {
		select {
		case position := <-l.Positions:
			if position < last {
				t.Fatalf("back from %s to %s", last, position)
			}
			last = position
		case err := <-l.Done:
			t.Fatalf("the stream ended: %v", err)
		}
	}
	if len(l.Messages) != 20 {
		t.Errorf("at %s %d of 20 rows had arrived", last, len(l.Messages))
	}
}

func TestOnlyOneStreamOwnsTheSlot(t *testing.T) {
	f := streamtest.New(t)
	f.Setup()
	f.Listen()
	second := f.Stream()
	if s, err := second.Slot(t.Context()); !s.Relayed(f.Source.Table) || err != nil {
		t.Errorf("owned by %s, %v", s.Owner(), err)
	}
	if _, err := second.Start(t.Context()); !errors.Is(err, replication.ErrSlotActive) {
		t.Errorf("err = %v", err)
	}
}

func TestCloseReleasesTheSlotAtOnce(t *testing.T) {
	f := streamtest.New(t)
	f.Setup()
	first := f.Listen()
	second := f.Stream()
	first.Stop()
	if err := f.WantEnd(first); err != nil {
		t.Errorf("a stopped stream: %v", err)
	}
	first.Close()
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	for active := true; active; {
		s, err := second.Slot(ctx)
		services.Must(t, err)
		active = s.Active()
	}
	l := f.Run(second)
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	f.WantInserted(l, "1")
}

func TestStreamEndsWithTheServersError(t *testing.T) {
	f := streamtest.New(t)
	f.Setup()
	l := f.Listen()
	f.Exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '` + f.Source.Slot + `'`)
	if err := f.WantEnd(l); !pgcode.Is(err, pgerrcode.AdminShutdown) {
		t.Errorf("err = %v", err)
	}
}

// refusing is a handler that returns an error.
type refusing struct{ *streamtest.Listener }

func (refusing) WAL([]byte) (pglogrepl.LSN, error) { return 0, errRefused }

var errRefused = errors.New("refused")

func TestHandlersErrorEndsTheStream(t *testing.T) {
	f := streamtest.New(t)
	f.Setup()
	stream := f.Stream()
	if _, err := stream.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	if err := stream.Run(t.Context(), refusing{&streamtest.Listener{}}); !errors.Is(err, errRefused) {
		t.Errorf("err = %v", err)
	}
}

func TestFastShutdownIsNotDelayed(t *testing.T) {
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t)
	f := streamtest.On(t, server.URL(""))
	f.Setup()
	l := f.Listen()
	f.Exec(`INSERT INTO outbox VALUES (48)`)
	f.WantInserted(l, "0") // from now on the server lets the stream end by itself (replication_active in walsender.c)
	f.Exec(`INSERT INTO outbox SELECT generate_series(49, 57)`)
	f.Exec(`INSERT INTO other SELECT generate_series(1, 10000)`)
	began := time.Now()
	services.Must(t, server.Stop(t.Context(), services.Fast))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the shutdown took %s", took)
	}
	if err := f.WantEnd(l); err == nil {
		t.Error("the stream ended without an error")
	}
	if len(l.Messages) != 9 {
		t.Errorf("%d of 9 rows had arrived", len(l.Messages))
	}
}

func TestSilentServerEndsTheStream(t *testing.T) {
	f := streamtest.New(t)
	u, err := url.Parse(f.URL)
	services.Must(t, err)
	proxy := services.NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	f.Setup()
	f.URL = u.String()
	stream := f.Stream()
	stream.SetIntervals(50*time.Millisecond, await.Scaled(2*time.Second))
	l := f.Run(stream)
	f.Exec(`INSERT INTO outbox VALUES (49)`)
	f.WantInserted(l, "1")
	proxy.BlackHole()
	began := time.Now()
	if err := f.WantEnd(l); err == nil || !strings.Contains(err.Error(), "silent") {
		t.Errorf("err = %v", err)
	}
	await.Judge(t, "noticing that the server is silent", time.Since(began), 10*time.Second)
	await.Within(t, "closing the stream", 10*time.Second, stream.Close)
}
