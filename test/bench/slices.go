package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// sampler reports the progress of a steady run, and measures each part of a long one.
type sampler struct {
	run      *run
	world    *world
	pace     pace
	sender   *sender
	except   []int // server processes that do not count
	arrivals *load.Arrivals
	began    time.Time

	end      context.CancelFunc
	sampling sync.WaitGroup
	samples  []sample // only run writes it
	failed   error
}

// sample is the state at one time.
type sample struct {
	at      time.Time
	arrived int
	usage   usage
	dead    int64
}

func (r *run) startSlices(
	ctx context.Context, w *world, p pace, s *sender, except []int, arrivals *load.Arrivals,
) *sampler {
	ctx, end := context.WithCancel(ctx)
	sampler := &sampler{
		run: r, world: w, pace: p, sender: s, except: except, arrivals: arrivals, began: time.Now(), end: end,
	}
	sampler.sampling.Go(func() { sampler.failed = sampler.sample(ctx) })
	return sampler
}

// stop can be called again.
func (s *sampler) stop() error {
	s.end()
	s.sampling.Wait()
	return s.failed
}

func (s *sampler) sample(ctx context.Context) error {
	const tellEvery = time.Second
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	next := s.began
	for {
		s.run.progress(fmt.Sprintf("%.0f/s", s.pace.rate), s.arrivals.Count(), s.run.result.Messages)
		if now := time.Now(); s.pace.slice > 0 && !now.Before(next) {
			next = next.Add(s.pace.slice)
			if err := s.take(ctx); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *sampler) take(ctx context.Context) error {
	now := sample{at: time.Now(), arrived: s.arrivals.Count()}
	var err error
	if now.usage, err = s.world.usage(s.except, s.sender.pid()); err != nil {
		return err
	}
	const dead = `SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = $1::regclass`
	if err := s.world.control.QueryRow(ctx, dead, s.world.table.SQL()).Scan(&now.dead); err != nil {
		return fmt.Errorf("count dead rows: %w", err)
	}
	s.samples = append(s.samples, now)
	return nil
}

// series returns the parts between samples; call it after stop.
func (s *sampler) series(arrivals *load.Arrivals) []Slice {
	latencies := arrivals.Latencies(0)
	slices.SortFunc(latencies, func(a, b load.Latency) int { return a.Committed.Compare(b.Committed) })
	var parts []Slice
	for i := 1; i < len(s.samples); i++ {
		before, now := s.samples[i-1], s.samples[i]
		messages := max(now.arrived-before.arrived, 1)
		part := Slice{
			Second: now.at.Sub(s.began).Seconds(), Rate: float64(messages) / now.at.Sub(before.at).Seconds(),
			CPU: now.usage.since(before.usage).perMillion(messages), DeadRows: now.dead,
		}
		if sorted := sortedTimes(committedBetween(latencies, before.at, now.at)); len(sorted) > 0 {
			part.P50, part.P99 = quantile(sorted, 0.5), quantile(sorted, 0.99)
		}
		parts = append(parts, part)
	}
	return parts
}

// committedBetween needs latencies in the order of their commits.
func committedBetween(latencies []load.Latency, from, to time.Time) []load.Latency {
	at := func(when time.Time) int {
		i, _ := slices.BinarySearchFunc(latencies, when,
			func(l load.Latency, t time.Time) int { return l.Committed.Compare(t) })
		return i
	}
	return latencies[at(from):at(to)]
}

// hold keeps a transaction with a snapshot and a transaction id open until release is called. The server vacuums by
// itself meanwhile, as in production.
func (w *world) hold(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return nil, err
	}
	for _, statement := range []string{
		"BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT pg_current_xact_id(), count(*) FROM " + w.table.SQL(),
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			closeConn(conn)
			return nil, fmt.Errorf("hold a transaction: %w", err)
		}
	}
	return func() { closeConn(conn) }, nil
}
