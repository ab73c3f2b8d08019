package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// stallAfter is how long nothing may arrive before a run fails.
	stallAfter = time.Minute
	// aheadAtMost is how far a single writer may be ahead of the consumer: the relay always has work, but the writer
	// does not use the whole machine at first and end halfway.
	aheadAtMost = 10_000
)

// run is one run of a case.
type run struct {
	Case
	site     *Site
	result   *Result
	world    *world
	arrivals *arrivals
}

func (r *run) total() int { return r.backlog + r.warmUp + r.written }

// measure creates what the run needs, with a consumer, and removes it afterwards.
func (r *run) measure(ctx context.Context) (err error) {
	if r.world, err = r.newWorld(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.world.close(ctx)) }()
	r.arrivals = newArrivals(r.total())
	consumer, err := consume(ctx, r.world.amqp, r.world.spec, r.arrivals)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	writers, err := r.openWriters(ctx)
	if err != nil {
		return err
	}
	defer writers.close()
	if err := r.fill(ctx); err != nil {
		return err
	}
	if r.byClock {
		if err := r.site.byClock(ctx, true); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.site.byClock(context.WithoutCancel(ctx), false)) }()
	}
	if r.held {
		release, err := r.world.hold(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	return r.publish(ctx, writers)
}

// publish measures a publisher: one that drains from its start, another one when it runs and the warm-up is over. The
// sessions of the bench do not count.
func (r *run) publish(ctx context.Context, writers *writers) error {
	bench := append(writers.pids(), int(r.world.control.PgConn().PID()))
	before, err := r.world.usage(bench)
	if err != nil {
		return err
	}
	p, err := r.start(ctx, r)
	if err != nil {
		return err
	}
	err = r.write(ctx, writers, p, 0, r.warmUp)
	if err == nil && r.backlog == 0 {
		before, err = r.world.usage(bench, p.children...)
	}
	if err == nil {
		err = r.untilDone(ctx, writers, p, bench, before)
	}
	return errors.Join(err, p.stop())
}

// untilDone writes the messages that are to be written, and measures until all have arrived and nothing is left to do.
func (r *run) untilDone(ctx context.Context, writers *writers, p *publisher, bench []int, before usage) error {
	if r.backlog > 0 && r.written > 0 {
		awaitCount(ctx, r.arrivals, 1)
	}
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	began, written := time.Now(), make(chan error, 1)
	go func() { written <- r.write(writing, writers, p, r.backlog+r.warmUp, r.total()) }()
	err := r.awaitArrivals(ctx, p)
	end := time.Now()
	if err != nil {
		stopWriting()
	}
	if err := errors.Join(err, <-written); err != nil {
		return err
	}
	settling, cancel := context.WithTimeout(ctx, stallAfter)
	defer cancel()
	if err := p.settled(settling); err != nil {
		return err
	}
	if r.rate == 0 {
		began = r.arrivals.First()
		if !r.IsLimit {
			end = time.Now()
		}
	}
	after, err := r.world.usage(bench, p.children...)
	if err != nil {
		return err
	}
	counted := r.total() - r.warmUp
	r.result.Messages, r.result.Duplicates = counted, r.arrivals.Duplicates()
	r.result.Seconds = end.Sub(began).Seconds()
	r.result.Rate = float64(counted) / r.result.Seconds
	r.result.CPU = after.since(before).perMillion(counted)
	r.result.setLatencies(r.arrivals.Latencies(r.total() - r.written))
	if r.result.MemoryMB, err = p.memory(); err != nil || r.IsLimit || r.rate > 0 {
		return err
	}
	return r.measureVacuum(ctx, bench)
}

// measureVacuum measures the later cost of the run's dead rows.
func (r *run) measureVacuum(ctx context.Context, bench []int) error {
	bench = bench[:len(bench)-1] // the last is the session that vacuums
	before, err := r.world.usage(bench)
	if err != nil {
		return err
	}
	if _, err := r.world.control.Exec(ctx, "VACUUM "+r.world.table.SQL()); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	after, err := r.world.usage(bench)
	r.result.Vacuum = after.since(before).perMillion(r.result.Messages).Postgres
	return err
}

// awaitArrivals waits for the last message, unless nothing arrives for stallAfter.
func (r *run) awaitArrivals(ctx context.Context, p *publisher) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for count := 0; ; {
		select {
		case <-r.arrivals.All():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if now := r.arrivals.Count(); now > count {
			count, last = now, time.Now()
		}
		for _, c := range p.children {
			if c.ended() && c.failure() != nil {
				return c.failure()
			}
		}
		if time.Since(last) > stallAfter {
			return fmt.Errorf("nothing arrived for %s: %d of %d messages are missing%s",
				stallAfter, r.total()-count, r.total(), p.logEnds())
		}
	}
}

// awaitCount waits until at least least messages have arrived.
func awaitCount(ctx context.Context, arrivals *arrivals, least int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for arrivals.Count() < least {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
