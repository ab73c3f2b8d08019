package replication

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/test/await"
)

func TestStreamStartsAtTheCurrentWALPosition(t *testing.T) {
	f := newFixture(t)
	f.mustSetup()
	early, err := f.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := early.Exec(t.Context(), `INSERT INTO outbox VALUES (50)`); err != nil {
		t.Fatal(err)
	}
	f.exec(`INSERT INTO outbox VALUES (49)`) // committed before the start
	l := f.listen()
	if err := early.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.exec(`INSERT INTO outbox VALUES (51)`)
	f.wantInserted(l, "2", "3")
}

func TestStreamReportsItsStartPosition(t *testing.T) {
	f := newFixture(t)
	f.mustSetup()
	before := f.value(`SELECT pg_current_wal_flush_lsn()`)
	l := f.listen()
	after := f.value(`SELECT pg_current_wal_flush_lsn()`)
	if !f.between(before, l.start, after) {
		t.Errorf("start %s, the server's position was between %s and %s", l.start, before, after)
	}
}

func (f *fixture) between(low string, position pglogrepl.LSN, high string) bool {
	f.Helper()
	l, err := pglogrepl.ParseLSN(low)
	if err != nil {
		f.Fatal(err)
	}
	h, err := pglogrepl.ParseLSN(high)
	if err != nil {
		f.Fatal(err)
	}
	return l <= position && position <= h
}

func TestIdleStreamConfirmsTheWALOfOtherTables(t *testing.T) {
	f := newFixture(t)
	f.listen()
	f.exec(`INSERT INTO other SELECT generate_series(1, 10000)`)
	end := f.value(`SELECT pg_current_wal_flush_lsn()`)
	f.await(`SELECT confirmed_flush_lsn >= '` + end + `' FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
}

func TestPositionsIncreaseAndReachEveryCommit(t *testing.T) {
	f := newFixture(t)
	f.mustSetup()
	f.exec(`INSERT INTO other SELECT generate_series(1, 20000)`) // the server reads this before the start
	l := f.listen()
	for range 20 {
		f.exec(`INSERT INTO outbox VALUES (49); INSERT INTO other SELECT generate_series(1, 100); DELETE FROM outbox`)
	}
	end, err := pglogrepl.ParseLSN(f.value(`SELECT pg_current_wal_flush_lsn()`))
	if err != nil {
		t.Fatal(err)
	}
	last := l.start
	for last < end {
		select {
		case position := <-l.positions:
			if position < last {
				t.Fatalf("back from %s to %s", last, position)
			}
			last = position
		case err := <-l.done:
			t.Fatalf("the stream ended: %v", err)
		}
	}
	if len(l.messages) != 20 {
		t.Errorf("at %s %d of 20 rows had arrived", last, len(l.messages))
	}
}

func TestARecreatedPublicationLeavesNoGap(t *testing.T) {
	f := newFixture(t)
	f.mustSetup()
	f.exec(`DROP PUBLICATION ` + f.names.Publication)
	f.exec(`INSERT INTO outbox VALUES (49)`)
	l := f.listen()
	f.exec(`INSERT INTO outbox VALUES (50)`)
	f.wantInserted(l, "2")
}

func TestPublicationDroppedDuringTheStreamIsRecreated(t *testing.T) {
	f := newFixture(t)
	l := f.listen()
	f.exec(`DROP PUBLICATION ` + f.names.Publication)
	f.exec(`INSERT INTO outbox VALUES (49)`)
	if err := f.wantEnd(l); !PublicationGone(err) {
		t.Fatalf("err = %v", err)
	}
	l.Close()
	again := f.listen()
	f.exec(`INSERT INTO outbox VALUES (50)`)
	f.wantInserted(again, "2")
}

func TestOnlyOneStreamOwnsTheSlot(t *testing.T) {
	f := newFixture(t)
	first := f.listen()
	second, _ := f.open()
	if s, err := second.Slot(t.Context()); !s.Owner().Is(first.Process()) || !s.Relayed(f.names.Table) || err != nil {
		t.Errorf("owned by %s, %v", s.Owner(), err)
	}
	if _, err := second.Start(t.Context()); !errors.Is(err, ErrSlotActive) {
		t.Errorf("err = %v", err)
	}
}

func TestCloseReleasesTheSlotAtOnce(t *testing.T) {
	f := newFixture(t)
	first := f.listen()
	second, _ := f.open()
	first.stop()
	if err := f.wantEnd(first); err != nil {
		t.Errorf("a stopped stream: %v", err)
	}
	first.Close()
	ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
	defer cancel()
	for active := true; active; {
		s, err := second.Slot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		active = s.Active()
	}
	l := f.run(second)
	f.exec(`INSERT INTO outbox VALUES (49)`)
	f.wantInserted(l, "1")
}

func TestSlotDroppedDuringTheStreamIsNoticed(t *testing.T) {
	f := newFixture(t)
	stream, _ := f.open()
	f.exec(`SELECT pg_drop_replication_slot('` + f.names.Slot + `')`)
	if s, err := stream.Slot(t.Context()); s.Exists() || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := stream.Start(t.Context()); err == nil {
		t.Error("started without a slot")
	}
}

func TestStreamEndsWithTheServersError(t *testing.T) {
	f := newFixture(t)
	l := f.listen()
	f.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '` + f.names.Slot + `'`)
	if err := f.wantEnd(l); !pgcode.Is(err, pgerrcode.AdminShutdown) {
		t.Errorf("err = %v", err)
	}
}

// refusing is a handler that returns an error.
type refusing struct{ *listener }

func (refusing) WAL([]byte) (pglogrepl.LSN, error) { return 0, errRefused }

var errRefused = errors.New("refused")

func TestHandlersErrorEndsTheStream(t *testing.T) {
	f := newFixture(t)
	stream, _ := f.open()
	if _, err := stream.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.exec(`INSERT INTO outbox VALUES (49)`)
	if err := stream.Run(t.Context(), refusing{&listener{}}); !errors.Is(err, errRefused) {
		t.Errorf("err = %v", err)
	}
}

func TestLargeTransactionArrivesComplete(t *testing.T) {
	f := newFixture(t)
	l := f.listen()
	f.exec(`INSERT INTO outbox SELECT generate_series(1, 900)`)
	f.exec(`INSERT INTO outbox SELECT i FROM generate_series(1000, 1001) i`)
	for range 902 {
		select {
		case <-l.messages:
		case err := <-l.done:
			t.Fatalf("the stream ended: %v", err)
		}
	}
}
