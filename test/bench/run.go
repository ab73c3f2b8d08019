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
	site      *Site
	result    *Result
	world     *world
	arrivals  *arrivals
	publisher *publisher
	sessions  []int // the server processes of the benchmark's own sessions, which do not count
}

func (r *run) total() int { return r.backlog + r.warmUp + r.written }

// measure creates what the run needs, with a consumer, and removes it afterwards.
func (r *run) measure(ctx context.Context) (err error) {
	if r.world, err = r.newWorld(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.world.close(ctx)) }()
	r.arrivals = newArrivals(r.total())
	stopConsumer, err := consume(ctx, r.world.amqp, r.world.spec, r.arrivals)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopConsumer()) }()
	writers, err := r.openWriters(ctx)
	if err != nil {
		return err
	}
	defer writers.close()
	if !r.IsLimit {
		if err := fill(ctx, r.world.control, r.world.table, r.world.spec, 0, r.backlog); err != nil {
			return err
		}
	}
	if err := r.world.rest(ctx); err != nil {
		return err
	}
	r.sessions = append(writers.pids(), int(r.world.control.PgConn().PID()))
	return r.publish(ctx, writers)
}

// publish measures a publisher: one that drains from its start, another one when it runs and the warm-up is over.
func (r *run) publish(ctx context.Context, writers *writers) (err error) {
	before, err := r.usage()
	if err != nil {
		return err
	}
	defer func() {
		if r.publisher != nil {
			err = errors.Join(err, r.publisher.stop())
		}
	}()
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.write(ctx, writers, 0, r.warmUp); err != nil {
		return err
	}
	if r.backlog == 0 {
		if before, err = r.usage(); err != nil {
			return err
		}
	}
	return r.untilDone(ctx, writers, before)
}

// untilDone writes the messages that are to be written, and measures until all have arrived and nothing is left to do.
func (r *run) untilDone(ctx context.Context, writers *writers, before usage) error {
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	began, written := time.Now(), make(chan error, 1)
	go func() { written <- r.write(writing, writers, r.backlog+r.warmUp, r.total()) }()
	err := r.awaitArrivals(ctx)
	end := time.Now()
	if err != nil {
		stopWriting()
	}
	if err := errors.Join(err, <-written); err != nil {
		return err
	}
	settling, cancel := context.WithTimeout(ctx, stallAfter)
	defer cancel()
	if err := r.publisher.settled(settling, r.total()); err != nil {
		return err
	}
	if r.rate == 0 {
		began = r.arrivals.First()
		if !r.IsLimit {
			end = time.Now()
		}
	}
	after, err := r.usage()
	if err != nil {
		return err
	}
	counted := r.total() - r.warmUp
	r.result.Messages, r.result.Duplicates = counted, r.arrivals.Duplicates()
	r.result.Seconds = end.Sub(began).Seconds()
	r.result.Rate = float64(counted) / r.result.Seconds
	r.result.CPU = after.since(before).perMillion(counted)
	r.result.setLatencies(r.arrivals.Latencies(r.warmUp))
	r.result.MemoryMB, err = r.publisher.memory()
	return err
}

// awaitArrivals waits for the last message, unless nothing arrives for stallAfter.
func (r *run) awaitArrivals(ctx context.Context) error {
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
		if r.publisher.ended() && r.publisher.failure() != nil {
			return r.publisher.failure()
		}
		if time.Since(last) > stallAfter {
			return fmt.Errorf("nothing arrived for %s: %d of %d messages are missing; the log ends:\n%s",
				stallAfter, r.total()-count, r.total(), r.publisher.logEnd())
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
