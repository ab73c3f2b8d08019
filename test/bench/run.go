package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/program"
)

const (
	// name is that of the database, the slot, the publication and the queue of each run.
	name = "cdc_relay_bench"
	// timeout limits one run, stallAfter how long nothing may arrive.
	timeout, stallAfter = 10 * time.Minute, time.Minute
	// prefetch is how many messages the broker delivers before the first acknowledgement.
	prefetch = 2000
	// uncompressedFrom is the size in bytes from which payloads are stored without compression. Postgres takes some 20
	// ms to try to compress a megabyte, so one writer would limit what a relay streams.
	uncompressedFrom = 100_000
)

// run is one run of a case.
type run struct {
	Case
	*Site
	database string
	conns    []*pgx.Conn // the benchmark's own sessions, which do not count
	control  *pgx.Conn   // the first of them
	writers  []*pgx.Conn // the others
	arrivals *arrivals

	publisher *program.Process
}

// Run measures the case once.
func (c Case) Run(ctx context.Context, site *Site, round int) (*Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished within %s", timeout))
	defer cancel()
	c.spec.Queue = name
	r := &run{Case: c, Site: site, database: site.Postgres.URL(name), arrivals: newArrivals(c.total())}
	result, err := r.measure(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	result.Case, result.Round = c.Name, round
	return result, nil
}

// measure creates what the run needs, and measures a publisher: one that drains from its start, another one when it
// runs and the warm-up is over.
func (r *run) measure(ctx context.Context) (_ *Result, err error) {
	defer func() {
		for _, conn := range r.conns {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	stopConsumer, err := r.consume(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopConsumer()) }()
	before, err := r.usage()
	if err != nil {
		return nil, err
	}
	if err := r.start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	if r.backlog == 0 {
		if !r.limit {
			err = r.await(ctx, isStreaming, name)
		}
		if err = errors.Join(err, r.write(ctx, 0, r.warmUp)); err != nil {
			return nil, err
		}
		if before, err = r.usage(); err != nil {
			return nil, err
		}
	}
	return r.untilDone(ctx, before)
}

// prepare creates a database with a backlog, and replaces that of an earlier run.
func (r *run) prepare(ctx context.Context) error {
	err := r.Postgres.Exec(ctx, "", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
		"DROP DATABASE IF EXISTS "+name+" WITH (FORCE)", "CREATE DATABASE "+name)
	if err != nil {
		return err
	}
	if output, err := r.relay("setup").CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay setup: %w: %s", err, output)
	}
	writers := min(r.written, 1)
	if r.rate > 0 {
		writers = pacedWriters
	}
	for range writers + 1 {
		conn, err := pgx.Connect(ctx, r.database)
		if err != nil {
			return err
		}
		r.conns = append(r.conns, conn)
	}
	r.control, r.writers = r.conns[0], r.conns[1:]
	if r.spec.Bytes >= uncompressedFrom {
		if _, err := r.control.Exec(ctx, "ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL"); err != nil {
			return err
		}
	}
	if !r.limit {
		if err := fill(ctx, r.control, r.spec, 0, r.backlog); err != nil {
			return err
		}
	}
	for _, maintenance := range []string{"VACUUM (ANALYZE)", "CHECKPOINT"} { // the server would do it later
		if _, err := r.control.Exec(ctx, maintenance); err != nil {
			return err
		}
	}
	return nil
}

// relay returns a command of the relay.
func (r *run) relay(args ...string) *exec.Cmd {
	cmd := exec.Command(r.program, args...)
	cmd.Env = program.Environment(
		"CDC_RELAY_DATABASE_URL="+r.database, "CDC_RELAY_AMQP_URL="+r.RabbitMQ.URL(""), "CDC_RELAY_SLOT="+name,
		"CDC_RELAY_PUBLICATION="+name, "CDC_RELAY_LOG_FORMAT=json",
	)
	return cmd
}

// consume declares an empty queue and consumes it. stop ends that, and returns an earlier error.
func (r *run) consume(ctx context.Context) (stop func() error, err error) {
	conn, err := program.Dial(r.RabbitMQ.URL(""), "bench consumer")
	if err != nil {
		return nil, err
	}
	if err := declare(conn, r.spec); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		defer program.HangUp(conn)
		done <- program.Consume(ctx, conn, name, prefetch, func(d *amqp.Delivery) {
			r.arrivals.arrived(number(d.Body), time.Now())
		})
	}()
	return func() error {
		cancel()
		return <-done
	}, nil
}

// declare replaces the queue of the messages by an empty one.
func declare(conn *amqp.Connection, spec Spec) error {
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := channel.QueueDelete(spec.Queue, false, false, false); err != nil {
		return err
	}
	var args amqp.Table // without a type, as the programs that declare their queues do
	if spec.QueueType != "" {
		args = amqp.Table{amqp.QueueTypeArg: spec.QueueType}
	}
	_, err = channel.QueueDeclare(spec.Queue, true, false, false, false, args)
	return err
}

// start starts the publisher of the case.
func (r *run) start() (err error) {
	cmd := r.relay(append([]string{"run"}, r.relayArgs...)...)
	if r.limit {
		order, err := json.Marshal(limitOrder{AMQPURL: r.RabbitMQ.URL(""), Spec: r.spec, Messages: r.total()})
		if err != nil {
			return err
		}
		cmd = exec.Command(r.self, "limit")
		cmd.Env, cmd.Stdin = program.Environment(), bytes.NewReader(order)
	}
	r.publisher, err = program.Start(cmd, filepath.Join(r.folder, "publisher.log"))
	return err
}

// stop sends SIGTERM and waits. An end of its own is that of a limit.
func (r *run) stop() error {
	const stopTimeout = 40 * time.Second
	_ = r.publisher.Cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-r.publisher.Done():
		return r.failure()
	case <-time.After(stopTimeout):
		err := r.publisher.Cmd.Process.Kill()
		<-r.publisher.Done()
		return errors.Join(fmt.Errorf("the publisher has not stopped %s after SIGTERM", stopTimeout), err)
	}
}

// failure says why the publisher failed; nil: it did not, or has not ended.
func (r *run) failure() error {
	if !r.publisher.Ended() || r.publisher.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("the publisher ended with %s; its log ends:\n%s", r.publisher.ProcessState, r.publisher.LogEnd())
}

// Conditions on the database.
const (
	isEmpty     = `NOT EXISTS (SELECT FROM outbox)`
	isStreaming = `EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming'
		AND pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1))`
)

// holds reports whether a condition on the database is met.
func holds(ctx context.Context, conn *pgx.Conn, condition string, args ...any) (met bool, err error) {
	err = conn.QueryRow(ctx, "SELECT "+condition, args...).Scan(&met)
	return met, err
}

// await waits until a condition on the database is met, unless the publisher fails.
func (r *run) await(ctx context.Context, condition string, args ...any) error {
	return program.Poll(ctx, func() (bool, error) {
		if err := r.failure(); err != nil {
			return false, err
		}
		return holds(ctx, r.control, condition, args...)
	})
}

// untilDone writes the messages that are to be written, and measures until all have arrived and nothing is left to do.
func (r *run) untilDone(ctx context.Context, before usage) (*Result, error) {
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	began, written := time.Now(), make(chan error, 1)
	go func() { written <- r.write(writing, r.backlog+r.warmUp, r.total()) }()
	err := r.awaitArrivals(ctx)
	end := time.Now()
	if err != nil {
		stopWriting()
	}
	if err := errors.Join(err, <-written); err != nil {
		return nil, err
	}
	if err := r.settled(ctx); err != nil {
		return nil, err
	}
	if r.rate == 0 {
		began = r.arrivals.first()
		if !r.limit {
			end = time.Now()
		}
	}
	after, err := r.usage()
	if err != nil {
		return nil, err
	}
	result := &Result{Messages: r.total() - r.warmUp, Duplicates: int(r.arrivals.duplicates.Load())}
	result.Rate = float64(result.Messages) / end.Sub(began).Seconds()
	result.setCPU(before, after)
	result.setLatencies(r.arrivals.latencies(r.warmUp))
	if !r.limit {
		peak, err := gauge.PeakMemory(r.publisher.Cmd.Process.Pid)
		result.MemoryMB = float64(peak) / (1 << 20)
		return result, err
	}
	return result, nil
}

// settled waits, after all messages have arrived, until nothing is left to do.
func (r *run) settled(ctx context.Context) error {
	if !r.limit {
		return r.await(ctx, isEmpty)
	}
	select {
	case <-r.publisher.Done():
		return r.failure()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitArrivals waits for the last message, unless nothing arrives for stallAfter.
func (r *run) awaitArrivals(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	last := time.Now()
	for count := 0; ; {
		select {
		case <-r.arrivals.all:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if now := r.arrivals.count(); now > count {
			count, last = now, time.Now()
		}
		if err := r.failure(); err != nil {
			return err
		}
		if time.Since(last) > stallAfter {
			return fmt.Errorf("nothing arrived for %s: %d of %d messages are missing; the log ends:\n%s",
				stallAfter, r.total()-count, r.total(), r.publisher.LogEnd())
		}
	}
}

// usage reads the processor time of the publisher, if it was started, and of the servers, without the benchmark's own
// sessions.
func (r *run) usage() (u usage, err error) {
	if p := r.publisher; p != nil && p.Ended() {
		u[0] = p.ProcessState.UserTime() + p.ProcessState.SystemTime()
	} else if p != nil {
		if u[0], err = gauge.CPU(p.Cmd.Process.Pid); err != nil {
			return u, err
		}
	}
	var sessions []int
	for _, conn := range r.conns {
		sessions = append(sessions, int(conn.PgConn().PID()))
	}
	if u[1], err = gauge.TreeCPU(r.Postgres.PID(), sessions); err != nil {
		return u, err
	}
	u[2], err = gauge.CPU(r.RabbitMQ.PID())
	return u, err
}
