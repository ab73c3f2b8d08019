package relay

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// A relay that starts brings each row to the end that the documentation promises, whatever the table holds. The folder
// testdata/recovery has states, one on a line; a failed test prints its state.
func TestAnyStateOfTheTableIsRecovered(t *testing.T) {
	files, err := filepath.Glob("testdata/recovery/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of states, %v", len(files), err)
	}
	for _, name := range files {
		file, err := os.Open(name)
		must(t, err)
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			var s tableState
			if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			t.Run(filepath.Base(name), func(t *testing.T) { recovers(t, &s) })
		}
	}
	last := uint64(30)
	if testing.Short() {
		last = 3
	}
	for seed := uint64(1); seed <= last; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { recovers(t, drawState(seed)) })
	}
}

func drawState(seed uint64) *tableState {
	random := rand.New(rand.NewPCG(seed, 0))
	s := &tableState{
		Mode: pick(random, "auto", "poll", "drain"), MaxRetries: pick(random, 0, 2, 5, UnlimitedRetries),
		Block: random.IntN(4) == 0, Drop: random.IntN(3) == 0,
		BatchSize: pick(random, 1, 3, 1000), InFlight: pick(random, 1, 7, 2000),
		Types: pick(random, "", "", "ALTER payload TYPE jsonb, ALTER ordering_key TYPE varchar, "+
			"ALTER routing_key TYPE varchar(300), ALTER coalesce_key TYPE varchar, ALTER last_error TYPE varchar"),
	}
	next := pick[int64](random, 1, -40, math.MinInt64, 1<<40)
	later := false
	for n := range 3 + random.IntN(30) {
		r := stateRow{
			Message: n, Version: pick(random, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 2, -1, 32767),
			Attempts:    pick(random, 0, 0, 0, 0, 0, 0, 1, 3, 7, greatestAttempts-1, greatestAttempts, -1),
			Created:     pick(random, "", "", "-1h", "+1h", "epoch", "infinity", "-infinity", "0001-01-01 00:00:00+00 BC"),
			Available:   pick(random, "", "", "", "", "", "-1h", "-1s", "+1h", "+2000h", "infinity", "-infinity", "epoch", "0001-01-01 00:00:00+00", "4713-01-01 00:00:00+00 BC"),
			Expires:     pick(random, "", "", "", "", "", "", "", "-1s", "+1h", "infinity", "-infinity", "0001-01-01 00:00:00+00"),
			MaxAttempts: pick(random, nil, nil, nil, new(0), new(1), new(3), new(-1), new(30000)),
			Possible:    pick(random, nil, nil, new(false), new(true)),
			Key:         pick(random, "", "", "a", "b", "c"),
			Coalesce:    pick(random, "", "", "", "x", "y"),
			Fault: pick(random, "", "", "", "", "", "", "", "", "", "unroutable", "unroutable", "exchange", "no payload", "two payloads",
				"long", "headers", "properties", "priority"),
			Trace: pick(random, "", "", "", "", "rolled back", "updated", "deleted", "shared", "killed", "held"),
			Dead:  pick(random, "", "", "", "", "", "", "", "", "both", "id", "message"),
		}
		if n > 0 && random.IntN(10) == 0 {
			r.Message--
		}
		if s.Mode != "drain" && random.IntN(20) == 0 {
			later = true
		}
		if r.Later = later; later {
			r.Trace, r.Dead = "", ""
			if r.Key != "" {
				r.Key, r.Coalesce = "late "+r.Key, ""
			}
			if r.Coalesce != "" {
				r.Coalesce = "late " + r.Coalesce
			}
		}
		if r.Available == "+2000h" && (later || r.Trace == "held") {
			r.Available = "+1h" // the leader may look for late retries before or after
		}
		r.ID = next
		next += pick[int64](random, 1, 1, 1, 2, 50)
		s.Rows = append(s.Rows, r)
	}
	if random.IntN(8) == 0 {
		s.Rows[len(s.Rows)-1].ID = math.MaxInt64
	}
	return s
}

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// recovery is one run over a state.
type recovery struct {
	*instance
	*tableState
	messages map[int64][2]string // the rows as they were inserted, without and with the time
}

func recovers(t *testing.T, s *tableState) {
	text, err := json.Marshal(s)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("for a file of testdata/recovery:\n%s", text)
		}
	})
	t.Parallel()
	r := &recovery{instance: newInstance(t), tableState: s, messages: make(map[int64][2]string)}
	r.config.BackoffTime, r.config.MaxBackoff = time.Millisecond, time.Hour
	r.config.MaxRetries, r.config.BatchSize, r.config.MaxInFlight = s.MaxRetries, s.BatchSize, s.InFlight
	if s.Block {
		r.config.OnDeadLetter = OnDeadLetterBlock
	}
	if s.Drop {
		r.config.OnExpired = OnExpiredDrop
	}
	if s.Types != "" {
		r.exec(`ALTER TABLE outbox ` + s.Types)
	}
	if s.Mode == "auto" { // otherwise the relay's slot would wait for the transactions that hold locks
		r.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, r.config.Slot)
	}
	for _, n := range rand.New(rand.NewPCG(uint64(len(s.Rows)), 0)).Perm(len(s.Rows)) { // of places in the table
		if !s.Rows[n].Later {
			r.insert(r.db, s.Rows[n])
		}
	}
	release := r.leaveTraces()
	later := func() {}
	var stop func()
	if s.Mode == "drain" {
		stop = r.drain()
	} else {
		r.config.Mode = Mode(s.Mode)
		var running *Relay
		running, stop = r.start()
		later = func() {
			r.await("the relay leads or polls", func() bool { return s.Mode == "poll" || running.core.View().Leader })
			tx, err := r.db.Begin(t.Context())
			must(t, err)
			for _, row := range s.Rows {
				if row.Later {
					r.insert(tx, row)
				}
			}
			must(t, tx.Commit(t.Context()))
		}
	}
	all := s.Rows
	s.Rows = slices.DeleteFunc(slices.Clone(all), func(row stateRow) bool { return row.Later })
	r.reaches(s.ends(true))
	release()
	r.reaches(s.ends(false))
	s.Rows = all
	later()
	r.reaches(s.ends(false))
	stop()
	r.config.Mode = ModeAuto
	r.drain()()
	r.reaches(s.ends(false))
	r.check()
}

// drain starts a drain; wait waits for its end.
func (r *recovery) drain() (wait func()) {
	relay := r.new(r.publisher(), slog.DiscardHandler, prometheus.NewRegistry())
	ended := make(chan error, 1)
	go func() { ended <- relay.Drain(context.WithoutCancel(r.t.Context())) }()
	return func() {
		if err := await.Receive(r.t, "the drain ends", ended); err != nil {
			r.t.Errorf("drain: %v", err)
		}
	}
}

func (r *recovery) insert(db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, row stateRow,
) {
	r.t.Helper()
	const at = `CASE WHEN $%[1]d ~ '^[+-]\d' THEN clock_timestamp() + $%[1]d::interval ELSE nullif($%[1]d::text, '')::timestamptz END`
	time := func(n int) string { return fmt.Sprintf(at, n) }
	routing, exchange, payload, bytes := r.queue, (*string)(nil), new(fmt.Sprint(row.ID)), []byte(nil)
	headers, properties := `{"x-possible-duplicate": true}`, `{}`
	switch row.Fault {
	case "unroutable":
		routing = "nowhere"
	case "exchange":
		exchange = new("nowhere")
	case "no payload":
		payload = nil
	case "two payloads":
		bytes = []byte{}
	case "long":
		routing = strings.Repeat("k", 256)
	case "headers":
		headers = `[]`
	case "properties":
		properties = `"text"`
	case "priority":
		properties = `{"priority": 256}`
	}
	var text [2]string
	err := db.QueryRow(r.t.Context(), `INSERT INTO outbox AS o (id, message_id, attempts, created_at, available_at, expires_at, max_attempts,
			schema_version, possible_duplicate, ordering_key, coalesce_key, exchange, routing_key, payload, payload_bytes, headers, properties)
		OVERRIDING SYSTEM VALUE VALUES ($1, $2::text::uuid, $3, coalesce(`+time(4)+`, now()), `+time(5)+`, `+time(6)+`, $7,
			$8, $9, nullif($10::text, ''), nullif($11::text, ''), $12, $13, $14, $15, $16, $17)
		RETURNING (to_jsonb(o) - 'possible_duplicate' - 'available_at')::text, (to_jsonb(o) - 'possible_duplicate')::text`,
		row.ID, message(row.Message), row.Attempts, row.Created, row.Available, row.Expires, row.MaxAttempts,
		row.Version, row.Possible, row.Key, row.Coalesce, exchange, routing, payload, bytes, headers, properties,
	).Scan(&text[0], &text[1])
	if err != nil {
		r.t.Fatalf("insert %+v: %v", row, err)
	}
	r.messages[row.ID] = text
	if row.Dead != "" {
		id, other := row.ID, message(row.Message)
		switch row.Dead {
		case "id":
			other = message(row.Message + 1000)
		case "message":
			id = -row.ID / 2
		}
		r.exec(`INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, routing_key, ordering_key, payload, failure_reason)
			VALUES ($1, $2::text::uuid, now(), 6, 1, 'r', nullif($3, ''), '1', 'older') ON CONFLICT DO NOTHING`, id, other, row.Key)
	}
}

func message(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// leaveTraces locks rows as other sessions would. Release ends the locks that are still held.
func (r *recovery) leaveTraces() (release func()) {
	ids := make(map[string][]int64)
	for _, row := range r.Rows {
		ids[row.Trace] = append(ids[row.Trace], row.ID)
	}
	begin := func(sql, trace string) pgx.Tx {
		tx, err := r.db.Begin(r.t.Context())
		if err == nil {
			_, err = tx.Exec(r.t.Context(), sql, ids[trace])
		}
		must(r.t, err)
		return tx
	}
	rollback := func(tx pgx.Tx) {
		must(r.t, tx.Rollback(r.t.Context()))
	}
	kill := func(tx pgx.Tx) {
		r.exec(`SELECT pg_terminate_backend($1, 60000)`, int(tx.Conn().PgConn().PID()))
		_ = tx.Rollback(r.t.Context()) // it has ended
	}
	const lock, share = `SELECT FROM outbox WHERE id = ANY ($1) FOR UPDATE`, `SELECT FROM outbox WHERE id = ANY ($1) FOR KEY SHARE`
	rollback(begin(lock, "rolled back"))
	rollback(begin(`UPDATE outbox SET attempts = 9, ordering_key = 'other' WHERE id = ANY ($1)`, "updated"))
	rollback(begin(`DELETE FROM outbox WHERE id = ANY ($1)`, "deleted"))
	one, other := begin(share, "shared"), begin(share, "shared")
	rollback(one)
	rollback(other)
	kill(begin(lock, "killed"))
	held := begin(lock, "held")
	r.t.Cleanup(func() { _ = held.Rollback(context.Background()) })
	if len(ids["held"])%2 == 0 {
		return func() { rollback(held) }
	}
	return func() { kill(held) }
}

func (r *recovery) reaches(want map[int64][]string) {
	r.t.Helper()
	var wrong string
	await.Until(r.t, "each row comes to its end", func() bool {
		got := r.ends()
		wrong = ""
		for _, id := range slices.Sorted(maps.Keys(want)) {
			if !slices.Contains(want[id], got[id]) {
				wrong += fmt.Sprintf("\n     row %d: %s; want %s", id, got[id], strings.Join(want[id], " or "))
			}
		}
		return wrong == ""
	}, func() string { return wrong })
}

func (r *recovery) ends() map[int64]string {
	rows, _ := r.db.Query(r.t.Context(), `
		SELECT id, CASE WHEN last_error IS NULL THEN 'waits' ELSE 'retries' END FROM outbox
		UNION ALL SELECT id, format('dead: %s, %s attempts', failure_reason, attempts) FROM outbox_dead_letter WHERE failure_reason <> 'older'`)
	ends := make(map[int64]string)
	add := func(id int64, end string) { ends[id] = strings.TrimPrefix(ends[id]+" and "+end, " and ") }
	var id int64
	var end string
	_, err := pgx.ForEachRow(rows, []any{&id, &end}, func() error { add(id, end); return nil })
	must(r.t, err)
	for _, d := range r.deliveries() {
		add(idIn(d), "published")
	}
	for _, row := range r.Rows {
		if ends[row.ID] == "" {
			ends[row.ID] = "gone"
		}
	}
	return ends
}

// idIn returns the id of a row, which is its payload.
func idIn(d rabbit.Delivery) (id int64) {
	_, _ = fmt.Sscan(string(d.Body), &id)
	return id
}

// check compares marks, the order of keys, and the rows that wait.
func (r *recovery) check() {
	dead, published := make(map[int64]bool), make(map[int64]bool)
	rows, _ := r.db.Query(r.t.Context(), `SELECT id, coalesce(possible_duplicate, false) FROM outbox_dead_letter WHERE failure_reason <> 'older'`)
	var id int64
	var is bool
	_, err := pgx.ForEachRow(rows, []any{&id, &is}, func() error { dead[id] = is; return nil })
	must(r.t, err)
	busy, newest := await.Busy(), make(map[string]int64)
	for _, d := range r.deliveries() {
		published[idIn(d)] = isMarked(d)
	}
	for _, row := range r.Rows {
		marked, certain := r.tableState.marked(row)
		for _, marks := range []map[int64]bool{published, dead} {
			is, there := marks[row.ID]
			if there && is != marked && certain && (marked || !busy && row.Fault != "exchange") {
				r.t.Errorf("row %d is marked: %t, want %t", row.ID, is, marked)
			}
		}
	}
	for _, d := range r.deliveries() {
		id := idIn(d)
		row := r.Rows[slices.IndexFunc(r.Rows, func(row stateRow) bool { return row.ID == id })]
		if last, ok := newest[row.Key]; ok && row.Key != "" && last > id {
			r.t.Errorf("key %s: row %d arrived after %d", row.Key, id, last)
		}
		newest[row.Key] = id
	}
	for id, end := range r.ends() {
		if end != "waits" {
			continue
		}
		var text [2]string
		err := r.db.QueryRow(r.t.Context(), `SELECT (to_jsonb(o) - 'possible_duplicate' - 'available_at')::text, (to_jsonb(o) - 'possible_duplicate')::text
			FROM outbox o WHERE id = $1`, id).Scan(&text[0], &text[1])
		row := r.Rows[slices.IndexFunc(r.Rows, func(row stateRow) bool { return row.ID == id })]
		if was := r.messages[id]; err != nil || text != was && !(text[0] == was[0] && row.hastened()) {
			r.t.Errorf("row %d waits, and is %s, was %s, %v", id, text[1], was[1], err)
		}
	}
}
