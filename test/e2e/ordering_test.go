package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// keyed is the body of a message with an ordering key.
type keyed struct {
	K string
	N int
}

// loadKeys has one writer for each key. It inserts its rows in order: single, several in a statement, and several in a
// transaction.
func (w *world) loadKeys(keys []string, each int, exchange func(key string) any) *sync.WaitGroup {
	w.t.Helper()
	var writers sync.WaitGroup
	for _, key := range keys {
		writers.Go(func() {
			if err := w.writeKey(w.t.Context(), key, each, exchange(key)); err != nil {
				w.t.Errorf("write rows of key %s: %v", key, err)
			}
		})
	}
	return &writers
}

func (w *world) writeKey(ctx context.Context, key string, n int, exchange any) error {
	const sql = `INSERT INTO outbox (exchange, routing_key, ordering_key, payload)
		SELECT $1, $2, $3::text, json_build_object('k', $3::text, 'n', n) FROM generate_series($4::int, $5::int) n ORDER BY n`
	for i := 1; i <= n; {
		most := min(n, i+i%4)
		err := pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sql, exchange, w.queue, key, i, most); err != nil || i%3 > 0 || most == n {
				return err
			}
			most++
			_, err := tx.Exec(ctx, sql, exchange, w.queue, key, most, most)
			return err
		})
		if err != nil {
			return err
		}
		i = most + 1
	}
	return nil
}

func toDefault(string) any { return nil }

func numbered(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	return keys
}

// inOrder checks that every message of each key arrived, and that the first deliveries are in order.
func (w *world) inOrder(l *ledger, each map[string]int) {
	w.t.Helper()
	last, count, seen := make(map[string]int), make(map[string]int), make(map[string]bool)
	for _, d := range l.all() {
		var body keyed
		must(w.t, "read a body", json.Unmarshal(d.Body, &body))
		if seen[d.MessageId] {
			continue
		}
		seen[d.MessageId] = true
		if body.K != "" && body.N != last[body.K]+1 {
			w.t.Fatalf("key %s: %d arrived after %d", body.K, body.N, last[body.K])
		}
		last[body.K] = body.N
		count[body.K]++
	}
	for key, n := range each {
		if count[key] != n {
			w.t.Errorf("key %s: %d of %d arrived", key, count[key], n)
		}
	}
}

func evenly(keys []string, n int) map[string]int {
	each := make(map[string]int)
	for _, key := range keys {
		each[key] = n
	}
	return each
}

// Covers 50 keys and a hot one.
func TestEachKeyArrivesInOrderAcrossStopsAndKills(t *testing.T) {
	w, arrived := consuming(t)
	keys, hot := numbered("k", 50), []string{"hot"}
	each := evenly(keys, 100)
	each["hot"] = 3000
	const total = 50*100 + 3000
	slow, fast := w.loadKeys(keys, 100, toDefault), w.loadKeys(hot, 3000, toDefault)
	kills := 0
	for i, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT, syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		r := w.run("--max-in-flight", "200")
		w.eventually("some arrive", func() bool { return arrived.distinct() >= total/8*(i+1) })
		before := arrived.duplicates()
		r.signal(end)
		code := r.exit()
		if end == syscall.SIGKILL {
			kills++
		} else if code != 0 {
			t.Errorf("exit code %d after %s", code, end)
		}
		t.Logf("%s with %d arrived, %d of them twice", end, arrived.distinct(), before)
	}
	slow.Wait()
	fast.Wait()
	w.run()
	w.eventually("all arrive", func() bool { return arrived.distinct() == total })
	w.emptied()
	w.inOrder(arrived, each)
	atMost(t, arrived, kills*200)
	arrived.allMarked()
}

// The key continues in order once its messages are accepted, also after a kill.
func TestARejectedKeyDelaysNoOther(t *testing.T) {
	t.Parallel()
	w, arrived := consuming(t)
	rejected, free := numbered("rejected", 10), numbered("free", 20)
	later := w.queue + "later"
	args := []string{"--backoff-time", "50ms", "--max-backoff", "200ms", "--max-retries", "1000", "--poll-interval", "50ms"}
	r := w.run(args...)
	first := w.loadKeys(rejected, 40, func(string) any { return later })
	w.loadKeys(free, 60, toDefault).Wait()
	first.Wait()
	w.eventually("the other messages arrive meanwhile", func() bool { return arrived.distinct() == 20*60 })
	w.eventually("each was rejected at least twice", func() bool {
		return value[int](w, `SELECT count(*) FROM outbox WHERE attempts > 1`) == len(rejected)
	})
	if n := value[int](w, `SELECT count(*) FROM outbox WHERE attempts > 0`); n != len(rejected) {
		t.Errorf("%d messages were charged an attempt, only the first of each key was to be tried", n)
	}
	r.kill()
	w.run(args...)
	w.bindExchange(later, "fanout", w.queue, "")
	w.eventually("all arrive", func() bool { return arrived.distinct() == 20*60+10*40 })
	w.emptied()
	each := evenly(rejected, 40)
	for _, key := range free {
		each[key] = 60
	}
	w.inOrder(arrived, each)
	w.noDeadLetters()
}
