package store_test

import (
	"fmt"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

const (
	duePast   = `now() - interval '1 minute'`
	dueFuture = `now() + interval '1 hour'`
)

func TestNextDueReturnsTheTimeUntilARowIsDue(t *testing.T) {
	f := newFixture(t)
	next := func() time.Duration {
		t.Helper()
		d, err := f.store.NextDue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	f.Plain(2)
	if d := next(); d != 24*time.Hour {
		t.Errorf("nothing has a time: %s", d)
	}
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', 'infinity')`)
	if d := next(); d != 24*time.Hour {
		t.Errorf("never due: %s", d)
	}
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', clock_timestamp() + interval '1 hour')`)
	if d := next(); d > time.Hour || d < 50*time.Minute {
		t.Errorf("due in an hour: %s", d)
	}
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', '-infinity')`)
	if d := next(); d > 0 {
		t.Errorf("due now: %s", d)
	}
}

func TestAClaimLocksOnlyEligibleUnlockedRows(t *testing.T) {
	f := newFixture(t)
	fresh := f.Insert(`(routing_key, payload) VALUES ('r', '1')`)
	due := f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', ` + duePast + `)`)
	always := f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', '-infinity')`)
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', ` + dueFuture + `)`)
	f.Insert(`(routing_key, payload, available_at) VALUES ('r', '1', 'infinity')`)
	f.Insert(`(routing_key, payload, available_at, schema_version) VALUES ('r', '1', ` + duePast + `, 2)`)
	later := f.Insert(`(routing_key, payload, created_at) VALUES ('r', '1', 'infinity')`)
	ids := f.IDs("true")

	young := f.claim(outbox.Fresh{Age: time.Hour, UpTo: math.MaxInt64}, ids...)
	equal(t, "of an age", idsOf(young.Messages), []int64{due, always})
	others := f.claim(outbox.AllFresh(), ids...)
	equal(t, "with another open claim", idsOf(others.Messages), []int64{fresh, later})
	young.Abandon()
	others.Abandon()
	for what, want := range map[string]struct {
		fresh outbox.Fresh
		ids   []int64
	}{
		"due alone":   {outbox.NoFresh(), []int64{due, always}},
		"all":         {outbox.AllFresh(), []int64{fresh, due, always, later}},
		"up to an id": {outbox.Fresh{UpTo: fresh}, []int64{fresh, due, always}},
	} {
		claim := f.claim(want.fresh, ids...)
		equal(t, what, idsOf(claim.Messages), want.ids)
		claim.Abandon()
	}
}

// Rows that need care are left to Lock: large ones, and those that another session may have locked.
func TestALockedRangeHasTheFirstRowsThatNeedNoCare(t *testing.T) {
	f := newFixture(t)
	f.Plain(12)
	f.Exec(`UPDATE outbox SET ordering_key = 'k' WHERE id = 3`)
	f.Exec(`UPDATE outbox SET available_at = ` + dueFuture + ` WHERE id = 4`)
	f.Exec(`UPDATE outbox SET schema_version = 2 WHERE id = 5`)
	f.Exec(`UPDATE outbox SET payload = to_json(array(SELECT random() FROM generate_series(1, 100))) WHERE id = 7`)
	f.claim(outbox.AllFresh(), 8).Abandon()
	locked := f.claim(outbox.AllFresh(), 9)
	in := outbox.Range{From: 2, UpTo: 11, Rows: 3, Size: 1000, Held: []int64{2}}
	for _, one := range []struct {
		what    string
		upTo    int64
		fresh   outbox.Fresh
		want    []int64
		skipped int64 // 0: none
	}{
		{"up to a row", 6, outbox.AllFresh(), []int64{6}, 0},
		{"none is old enough", 11, outbox.Fresh{Age: time.Hour, UpTo: math.MaxInt64}, nil, 0},
		{"three", 11, outbox.AllFresh(), []int64{10, 11}, 6}, // 6 has a trace by now
	} {
		in.UpTo = one.upTo
		claim, err := f.store.LockPlain(t.Context(), in, one.fresh, "")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, one.what, idsOf(claim.Messages), one.want)
		if skipped := claim.Skipped; (skipped == nil) != (one.skipped == 0) || skipped != nil && *skipped != one.skipped {
			t.Errorf("%s: the first row that needs care is not %d", one.what, one.skipped)
		}
		claim.Abandon()
	}
	locked.Abandon()
	f.Exec(`DELETE FROM outbox`)
	f.Plain(5)
	claim, err := f.store.LockPlain(t.Context(), outbox.Range{UpTo: math.MaxInt64, Rows: 3, Size: 1000}, outbox.AllFresh(), "")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "the first ones", idsOf(claim.Messages), []int64{13, 14, 15})
	var rows []outbox.Settlement
	for _, m := range claim.Messages {
		rows = append(rows, deleted(m))
	}
	f.commit(claim, rows...)
	equal(t, "the rows left", f.IDs("true"), []int64{16, 17})
}

// Only claims that did not end normally show in xmax.
func TestALockThatDidNotDeleteTheRowLeavesATrace(t *testing.T) {
	f := newFixture(t)
	f.Plain(6)
	marked := func(id int64) bool {
		t.Helper()
		var claim *store.LockedRows
		await.Until(t, fmt.Sprintf("row %d can be locked", id), func() bool { // a terminated session ends a little later
			claim = f.claim(outbox.AllFresh(), id)
			if len(claim.Messages) == 0 {
				claim.Abandon()
			}
			return len(claim.Messages) == 1
		})
		m := claim.Messages[0]
		f.commit(claim, released(&outbox.Message{Row: outbox.Row{ID: m.ID, MessageID: m.MessageID}}))
		return m.PossibleDuplicate
	}
	if first, again := marked(1), marked(1); first || again {
		t.Error("a released row that was not sent is marked")
	}
	f.claim(outbox.AllFresh(), 2).Abandon()
	if first, again := marked(2), marked(2); !first || again {
		t.Error("a row of an abandoned claim is not marked, once")
	}
	killed := f.claim(outbox.AllFresh(), 3)
	f.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()`)
	if err := killed.Commit(t.Context(), []outbox.Settlement{deleted(killed.Messages[0])}, 0); err == nil {
		t.Error("the claim of a terminated session commits")
	}
	if !marked(3) {
		t.Error("a row of a claim that was killed is not marked")
	}
	rejected := f.claim(outbox.AllFresh(), 4)
	f.commit(rejected, retried(rejected.Messages[0], 0))
	if marked(4) {
		t.Error("a row that was rejected in a claim is marked")
	}
	late := f.claim(outbox.AllFresh(), 5)
	if err := late.Commit(t.Context(), []outbox.Settlement{{Message: late.Messages[0], Decision: outbox.Decision{Action: outbox.Postpone}}}, 0); err != nil {
		t.Fatal(err)
	}
	if late.Messages[0].AvailableAt == nil || !marked(5) {
		t.Error("a row without an answer has no time, or no mark")
	}
	f.settle(retried(f.read(5)[0], 0))
	if marked(6) {
		t.Error("a streamed row that was rejected is marked")
	}
}

func TestAFrozenClaimIsEndedByTheServer(t *testing.T) {
	f := newFixture(t)
	var timeout string
	err := f.store.Conn(t.Context(), func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&timeout)
	})
	if err != nil || timeout != fmt.Sprint(int(store.IdleTimeout.Seconds()))+"s" {
		t.Errorf("the timeout is %s (%v), want %s", timeout, err, store.IdleTimeout)
	}
}

func TestAnUnreadableRowIsNamed(t *testing.T) {
	f := newFixture(t)
	f.Plain(1)
	f.Exec(`ALTER TABLE outbox ALTER routing_key DROP NOT NULL`)
	f.Insert(`(payload) VALUES ('1')`)
	claim := f.claim(outbox.AllFresh(), 1, 2)
	defer claim.Abandon()
	if len(claim.Messages) != 2 || claim.Messages[0].NoRoutingKey || !claim.Messages[1].NoRoutingKey || claim.Messages[1].ID != 2 {
		t.Errorf("got %+v", claim.Messages)
	}
}

func TestADeadLetterBlocksItsKeyIfConfigured(t *testing.T) {
	f := newFixture(t)
	f.store = open(t, f.URL, store.Options{Table: tabletest.Name(), Block: true})
	for _, key := range []string{"dead", "free"} {
		f.Insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', $1)`, key)
	}
	f.settle(dead(f.read(0)[0], true))
	f.Insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', 'dead')`)
	runs, _, err := f.store.FindRuns(t.Context(), []string{"dead", "free"}, 1, outbox.AllFresh())
	if err != nil || len(runs) != 2 || runs[0][0].Ready || !runs[1][0].Ready {
		t.Errorf("got %+v, %v", runs, err)
	}
	claim := f.claim(outbox.AllFresh(), 2, 3)
	equal(t, "locked", idsOf(claim.Messages), []int64{2})
	claim.Abandon()
	f.Exec(`DELETE FROM outbox_dead_letter`)
	claim = f.claim(outbox.AllFresh(), 2, 3)
	equal(t, "locked after the purge", idsOf(claim.Messages), []int64{2, 3})
	claim.Abandon()
}

func TestKeysAreFoundByTheirOldestRow(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, ordering_key, available_at) SELECT 'r', '1', 'key ' || i % 7, CASE WHEN i = 3 THEN now() + interval '1 h' END
		FROM generate_series(1, 70) i`)
	f.Insert(`(routing_key, payload, ordering_key) VALUES ('r', '1', '')`)
	var after *string
	var keys []string
	for more := true; more; {
		runs, _, err := f.store.FindKeys(t.Context(), after, 3, 2, outbox.AllFresh())
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range runs {
			after = run[0].OrderingKey
			keys = append(keys, *after)
			if want := *after != "key 3"; run[0].Ready != want {
				t.Errorf("key %q is ready: %v", *after, run[0].Ready)
			}
			if want := 2; *after != "" && (len(run) != want || run[1].ID != run[0].ID+7) {
				t.Errorf("key %q has the rows %v", *after, refIDs(run))
			}
		}
		more = len(runs) == 3
	}
	if got := fmt.Sprintf("%q", keys); got != `["" "key 0" "key 1" "key 2" "key 3" "key 4" "key 5" "key 6"]` {
		t.Errorf("got %s", got)
	}
	runs, _, err := f.store.FindRuns(t.Context(), []string{"key 5", "key 3", "none"}, 4, outbox.AllFresh())
	if err != nil || len(runs) != 2 {
		t.Fatalf("got %+v, %v", runs, err)
	}
	equal(t, "the first run", refIDs(runs[0]), []int64{5, 12, 19, 26})
	equal(t, "the second run", refIDs(runs[1]), []int64{3, 10, 17, 24})
	if runs[1][0].Ready || !runs[1][1].Ready {
		t.Error("the result does not say which rows are ready")
	}
}

func TestRowsWithTheSameTimeAreFoundPageByPage(t *testing.T) {
	f := newFixture(t)
	f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'r', '1', now() - interval '1 h' FROM generate_series(1, 5)`)
	f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) SELECT 'r', '1', now() - interval '1 m' FROM generate_series(1, 2)`)
	var found []int64
	var after *outbox.Place
	var until *time.Time
	for range 4 {
		page, at, err := f.store.FindDue(t.Context(), after, until, 3)
		if err != nil {
			t.Fatal(err)
		}
		if until == nil {
			until = &at
			f.Exec(`INSERT INTO outbox (routing_key, payload, available_at) VALUES ('due later', '1', clock_timestamp())`)
		}
		for _, row := range page {
			found, after = append(found, row.ID), &outbox.Place{Due: *row.Due, ID: row.ID}
		}
	}
	equal(t, "found", found, []int64{1, 2, 3, 4, 5, 6, 7})
}

func TestAClaimRecordsItsWALPosition(t *testing.T) {
	f := newFixture(t)
	f.Plain(1)
	before := tabletest.One[int64](f, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`)
	claim := f.claim(outbox.AllFresh(), 1)
	defer claim.Abandon()
	if claim.Position < uint64(before) || claim.Owner != 0 {
		t.Errorf("position %d, owner %d", claim.Position, claim.Owner)
	}
}

// A claim that ends slowly also keeps it.
func TestASlowServerKeepsItsConnection(t *testing.T) {
	f := newFixture(t)
	address, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := services.NewProxy(t, address.Host)
	address.Host = proxy.Addr()
	s := open(t, address.String(), store.Options{Table: tabletest.Name()})
	claim, err := s.Lock(t.Context(), []int64{1}, outbox.AllFresh(), "")
	if err != nil {
		t.Fatal(err)
	}
	proxy.BlackHole()
	defer time.AfterFunc(500*time.Millisecond, func() { proxy.Resume() }).Stop() // how slow the server is
	claim.Abandon()
	if _, err := s.Position(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := tabletest.One[int](f, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'cdc-relay'`); n != 1 {
		t.Errorf("the store has %d connections", n)
	}
}

// They would wait for each other if a claim took its table lock for writing only at the delete.
func TestAReindexAndAClaimDoNotDeadlock(t *testing.T) {
	f := newFixture(t)
	f.Plain(2)
	claim := f.claim(outbox.AllFresh(), f.IDs("true")...)
	other := tabletest.Connect(t, f.URL)
	reindexed := make(chan error, 1)
	go func() {
		_, err := other.Exec(t.Context(), `REINDEX TABLE outbox`)
		reindexed <- err
	}()
	await.Until(t, "REINDEX waits for the claim", func() bool {
		var waits bool
		const sql = `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() WHERE NOT granted)`
		if err := f.Conn.QueryRow(t.Context(), sql).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	})
	f.commit(claim, deleted(claim.Messages[0]), deleted(claim.Messages[1]))
	if err := await.Receive(t, "the table is reindexed", reindexed); err != nil {
		t.Error(err)
	}
}

// They have only the text of Postgres, without "error preprocessing batch (prepare)".
func TestErrorsHaveNoPhrasesOfTheDriver(t *testing.T) {
	f := newFixture(t)
	f.Exec(`ALTER TABLE outbox DROP COLUMN available_at`)
	_, _, find := f.store.FindKeys(t.Context(), nil, 10, 1, outbox.AllFresh())
	_, lock := f.store.Lock(t.Context(), []int64{1}, outbox.AllFresh(), "none")
	for want, err := range map[string]error{
		"find ordering keys of public.outbox: ERROR: column r.available_at does not exist": find,
		"claim rows of public.outbox: ERROR: column r.available_at does not exist":         lock,
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// It follows the database's clock, not that of this process.
func TestAClaimReturnsTheRemainingTimeOfARow(t *testing.T) {
	f := newFixture(t)
	for _, expires := range []string{"now() + interval '1 h'", "now() - interval '1 h'", "'infinity'", "'-infinity'", "NULL"} {
		f.Insert(`(routing_key, payload, expires_at) VALUES ('r', '1', ` + expires + `)`)
	}
	rows := f.takeAll()
	between := func(i int, least, most time.Duration) {
		t.Helper()
		if left, expires := rows[i].TimeLeft(time.Now()); !expires || left < least || left > most {
			t.Errorf("row %d: %s, %v", i, left, expires)
		}
	}
	between(0, 59*time.Minute, time.Hour)
	between(1, -61*time.Minute, -time.Hour)
	between(2, 1000*time.Hour, math.MaxInt64)
	between(3, math.MinInt64, -1000*time.Hour)
	if _, expires := rows[4].TimeLeft(time.Now()); expires {
		t.Error("a row without expires_at expires")
	}
}

// The broker's last error says more than "expired".
func TestAnExpiredDeadLetterKeepsItsError(t *testing.T) {
	f := newFixture(t)
	f.Insert(`(routing_key, payload, expires_at, last_error) VALUES ('a', '1', now(), 'nack: full')`)
	f.Insert(`(routing_key, payload, expires_at) VALUES ('b', '1', now() + interval '1 h')`)
	var batch []outbox.Settlement
	for _, m := range f.read(0) {
		batch = append(batch, outbox.Settlement{Message: m, Decision: outbox.Decision{Action: outbox.DeadLetter, Reason: outbox.ReasonExpired, Detail: "expired: x"}})
	}
	f.settle(batch...)
	if got := tabletest.One[string](f, `SELECT string_agg(last_error, ', ' ORDER BY id) FROM outbox_dead_letter`); got != "nack: full, expired: x" {
		t.Error(got)
	}
}
