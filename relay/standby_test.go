package relay

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func (i *instance) open() *replication.Stream {
	i.t.Helper()
	s := &streamer{address: pgdial.AddressOf(i.config.DatabaseURL, ""), names: i.config.Names()}
	stream, err := s.connect(i.t.Context())
	must(i.t, err)
	i.t.Cleanup(stream.Close)
	if _, err := provision.Setup(i.t.Context(), stream.Conn(), s.names, await.Hang()); err != nil {
		i.t.Fatal(err)
	}
	return stream
}

// A lost connection could own the slot until wal_sender_timeout. A relay that may have lost the lock ends no stream.
func TestALostStreamLosesItsSlotSoon(t *testing.T) {
	i := newInstance(t)
	log := slog.New(slog.DiscardHandler)
	lost := i.open()
	if _, err := lost.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := core.New(core.DefaultLimits(1), core.Policy{})
	c.BeginTerm(core.Lead{})
	s := &streamer{names: i.config.Names(), core: c, log: log, alive: newHeartbeat(), trouble: newOutageLog(log, pgdial.Address{})}
	ctx, cancel := context.WithTimeout(t.Context(), 3*askSlot)
	defer cancel()
	if err := s.freeSlot(ctx, i.open()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the relay does not know whether it leads: %v", err)
	}
	c.Owned(time.Now())
	if err := s.freeSlot(t.Context(), i.open()); err != nil {
		t.Errorf("a lost stream still owns the slot: %v", err)
	}
}

// Its last sweep as a leader may have failed, and a standby does not sweep.
func TestAStandbyHasNoTroubleWithSweeps(t *testing.T) {
	i := newInstance(t)
	r := i.new(i.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
	defer r.store.Close()
	r.phase.Store(phaseRunning)
	r.sweeper.Trouble.Report(event.SweepFailing, "cannot scan the table", errors.New("connection reset by peer"))
	if r.databaseAnswers() {
		t.Error("a relay that cannot sweep is connected")
	}
	r.leader.waitsFor.Store(&slot.Process{PID: 1})
	if !r.databaseAnswers() {
		t.Error("a standby is not connected")
	}
	for _, part := range r.Health().Parts {
		if part.Name == "sweep" && !part.Ready {
			t.Errorf("its sweeps are not ready: %s", part.Detail)
		}
	}
}

// REINDEX CONCURRENTLY of a table with an index would keep the lock until all older transactions have ended.
func TestTheLockedTableHasNoIndex(t *testing.T) {
	var bare bool
	const sql = `SELECT NOT relhasindex AND reltoastrelid = 0 FROM pg_class WHERE oid = 'outbox_migrations'::regclass`
	if err := newInstance(t).db.QueryRow(t.Context(), sql).Scan(&bare); err != nil || !bare {
		t.Errorf("it has none: %t, %v", bare, err)
	}
}

func (i *instance) locks(shard outbox.Shard) lockSession {
	i.t.Helper()
	s, err := connectLock(i.t.Context(), pgdial.AddressOf(i.config.DatabaseURL, ""), i.config.Table, shard)
	must(i.t, err)
	i.t.Cleanup(func() { s.close(context.Background()) })
	return s
}

// One relay leads a table, or one each of its shards. A session keeps its lock when it renews it.
func TestOneSessionHasTheLock(t *testing.T) {
	i := newInstance(t)
	whole, first, second := outbox.Shard{}, outbox.Shard{Index: 0, Of: 2}, outbox.Shard{Index: 1, Of: 2}
	for name, c := range map[string]struct {
		held, wanted outbox.Shard
		free         bool
	}{
		"the table twice":          {held: whole, wanted: whole},
		"a shard of a led table":   {held: whole, wanted: first},
		"the table of a led shard": {held: second, wanted: whole},
		"a shard twice":            {held: second, wanted: second},
		"two shards":               {held: first, wanted: second, free: true},
	} {
		holder, other := i.locks(c.held), i.locks(c.wanted)
		ctx := t.Context()
		for _, renews := range []bool{false, true, true} {
			if taken, err := holder.take(ctx, renews); !taken || err != nil {
				t.Fatalf("%s: the first session does not have the lock: %v", name, err)
			}
			if silent, err := holder.query(ctx, "SHOW idle_in_transaction_session_timeout"); err != nil || silent[0][0] != "4s" {
				t.Errorf("%s: the server ends a silent leader after %v, %v", name, silent, err)
			}
			if taken, err := other.take(ctx, false); taken != c.free || err != nil {
				t.Errorf("%s: the other session has a lock: %t, %v", name, taken, err)
			}
			if seen, err := i.locks(c.wanted).locker(ctx); err != nil || !c.free && seen.PID != holder.conn.PID() {
				t.Errorf("%s: process %d has the lock, %v", name, seen.PID, err)
			}
			other.close(ctx)
			other = i.locks(c.wanted)
		}
		if _, err := holder.ping(ctx); err != nil {
			t.Error(err)
		}
		var xid, xmin *string
		row := i.db.QueryRow(ctx, `SELECT backend_xid::text, backend_xmin::text FROM pg_stat_activity WHERE pid = $1`, holder.conn.PID())
		if err := row.Scan(&xid, &xmin); err != nil || xid != nil || xmin != nil {
			t.Errorf("%s: the session holds back vacuum: %v, %v, %v", name, xid, xmin, err)
		}
		holder.close(ctx)
	}
}

// The next leader need not rest if the former one has left word, and nobody has led since.
func TestALeaderLeavesWordOfItsEnd(t *testing.T) {
	i := newInstance(t)
	ctx, left := t.Context(), int64(math.MinInt64)
	for _, step := range []struct {
		name       string
		change     string
		ends, word bool
	}{
		{name: "the database is a copy, and nobody has led"},
		{name: "nobody has led", change: "new tables", word: true, ends: true},
		{name: "the former leader ended well", word: true},
		{name: "the former leader died", ends: true},
		{name: "the word is of another server", change: `UPDATE new_migrations SET ended_well = message_id FROM (SELECT gen_random_uuid() message_id) other`, ends: true},
		{name: "it ended well on this one", word: true, ends: true},
		{name: "an earlier build created the table", change: `ALTER TABLE new_migrations DROP COLUMN ended_well`, ends: true},
	} {
		if step.change == "new tables" {
			i.config.Table.Name = "new"
			err := i.db.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
				_, _, err := migrations.Up(ctx, conn.Conn(), i.config.Table)
				return err
			})
			must(t, err)
		} else if step.change != "" {
			i.exec(step.change)
		}
		s := i.locks(outbox.Shard{})
		if taken, err := s.take(ctx, false); !taken || err != nil {
			t.Fatalf("%s: no lock: %v", step.name, err)
		}
		for _, want := range []bool{step.word, false} {
			got, older, err := s.takeWord(ctx, i.locks(outbox.Shard{}).conn)
			if got != want || got && older != left || err != nil {
				t.Errorf("%s: the word is true: %t, up to %d, %v; want %t, %d", step.name, got, older, err, want, left)
			}
		}
		if step.ends {
			left = 7
			s.leaveWord(ctx, left)
		}
		s.close(ctx)
		await.Until(t, "the lock is free", func() bool {
			holder, err := i.locks(outbox.Shard{}).locker(ctx)
			return err == nil && holder.PID == 0
		})
	}
}

// An old transaction would alarm monitors, and VACUUM would wait for its lock. So the leader renews it, and a session that
// waits for the lock gets it. Then this relay is no leader, is not ready, and says which session it is. A leader whose
// session has ended stops at once, also if it has no stream.
func TestALeaderRenewsItsLockAndNoticesItsLoss(t *testing.T) {
	t.Parallel()
	i := newInstance(t)
	i.config.Mode = ModePoll
	var log publishtest.Buffer
	r := i.new(i.publisher(), slog.NewTextHandler(&log, nil), prometheus.NewRegistry())
	began := time.Now()
	if _, err := r.newLeader().greatestID(t.Context(), began); err != nil || time.Since(began) < core.LateAfter {
		t.Errorf("the former leader may publish for %v: waited for %v, %v", core.LateAfter, time.Since(began), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	lead := func() (ready bool, detail string) {
		if r.phase.Load() == phaseRunning {
			_, _, ready, detail, _ = r.leads()
		}
		return ready, detail
	}
	i.await("the relay leads", func() bool { ready, _ := lead(); return ready })
	tx, err := i.db.Begin(t.Context())
	must(t, err)
	tabletest.Run(t, tx, `LOCK TABLE outbox_migrations IN SHARE UPDATE EXCLUSIVE MODE`)
	i.await("the relay names the session", func() bool {
		ready, detail := lead()
		return !ready && strings.Contains(detail, "has locked") && strings.Contains(detail, "is no relay")
	})
	must(t, tx.Rollback(t.Context()))
	i.await("it leads again", func() bool { ready, _ := lead(); return ready })
	leader := func() (pid int) {
		_ = i.db.QueryRow(t.Context(), `SELECT pid FROM pg_locks WHERE relation = 'outbox_migrations'::regclass
			AND mode = 'ShareUpdateExclusiveLock' AND granted`).Scan(&pid)
		return pid
	}
	var former int
	i.await("a session has the lock", func() bool { former = leader(); return former != 0 })
	i.exec(`SELECT pg_terminate_backend($1)`, former)
	i.await("another session leads", func() bool { pid := leader(); return pid != 0 && pid != former })
	i.await("the locked table and the end of the session are in the log", func() bool {
		return strings.Count(strings.Join(log.Lines(), "\n"), lockDown) >= 2
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A leader leaves the slot to a standby only if that can help. Two relays with the same trouble would pass it round.
func TestTheLeaderHandsOverOnlyIfThatCanHelp(t *testing.T) {
	const connecting, ready, blocked = publish.Connecting, publish.Ready, publish.Blocked
	for name, c := range map[string]struct {
		phases  []publish.Phase // one each second, from the moment when it took the slot
		answers int
		want    int // the second in which it hands over, -1: never
	}{
		"cut off":                          {repeated(connecting, 60), 1, 6},
		"paused":                           {repeated(publish.Paused, 60), 1, 6},
		"blocked":                          {repeated(blocked, 100), 1, -1},
		"connected now and then":           {append(repeated(connecting, 5), append(repeated(ready, 1), repeated(connecting, 5)...)...), 1, -1},
		"connected, and without answers":   {repeated(ready, 100), 0, -1},
		"no answer since it took the lead": {append(repeated(ready, 1), repeated(connecting, 100)...), 0, 61},
		"took the lead without a broker":   {repeated(connecting, 100), 0, 6},
	} {
		took := time.Now()
		b, got := brokerOutage{took: took, answers: 7}, -1
		for second, phase := range c.phases {
			if b.handsOver(phase, 7+c.answers, took.Add(time.Duration(second)*time.Second)) {
				got = second
				break
			}
		}
		if got != c.want {
			t.Errorf("%s: hands over in second %d, want %d", name, got, c.want)
		}
	}
}

func repeated(phase publish.Phase, times int) (all []publish.Phase) {
	for range times {
		all = append(all, phase)
	}
	return all
}

// hanging is a publisher that can hang in a library: it publishes, says that it is stuck, and does not end.
type hanging struct {
	publish.Publisher
	stuck    atomic.Bool
	returned chan struct{} // its Run returns when this is closed
	ended    chan struct{}
}

func (h *hanging) Run(ctx context.Context, sink publish.Sink) error {
	defer close(h.ended)
	err := h.Publisher.Run(ctx, sink)
	<-h.returned
	return err
}

func (h *hanging) Overdue() time.Duration {
	if h.stuck.Load() {
		return stuckAfter
	}
	return 0
}

// The stream of a stuck relay still moves, and answers the server.
func TestAStuckRelayHandsOverTheSlotAndEndsInTime(t *testing.T) {
	i := newInstance(t)
	i.config.ShutdownTimeout = 100 * time.Millisecond
	publisher := &hanging{Publisher: i.publisher(), returned: make(chan struct{}), ended: make(chan struct{})}
	first, stopFirst := i.startWith(publisher, prometheus.NewRegistry())
	i.await("the first streams", func() bool { return first.Health().Role == "streaming" })
	second, stopSecond := i.start()
	i.await("the second is a standby", func() bool { return second.Health().Role == "standby" })
	publisher.stuck.Store(true)
	if h := first.Health(); h.Live || h.Ready || h.Parts[0].Detail != "has not moved for 1m0s" {
		t.Errorf("a stuck publisher: %+v", h)
	}
	i.await("the first logs it", func() bool { return strings.Contains(first.stuck.Current(), "publisher: has not moved") })
	i.await("the second streams", func() bool { return second.Health().Role == "streaming" })
	i.await("the first is a standby", func() bool { return first.Health().Role == "standby" })
	i.load(100)
	i.await("all arrive", func() bool { return i.arrived() == 100 })
	stopSecond()
	stopFirst() // although its publisher does not return
	close(publisher.returned)
	<-publisher.ended
	i.await("the first has left nothing behind", func() bool { return first.phase.Load() == phaseStopped })
}
