package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// publisher is what publishes the messages of a run.
type publisher struct {
	children []*child // none: this process publishes
	// committed is called for each message of paced writers after its commit.
	committed func(n int) error
	// settled waits, after all messages have arrived, until nothing is left to do.
	settled func(ctx context.Context) error
	// stop stops it. It can be called after an error.
	stop func() error
}

// start starts a publisher.
type start func(ctx context.Context, r *run) (*publisher, error)

// ofChildren is a publisher of processes that stop on SIGTERM.
func ofChildren(children ...*child) *publisher {
	p := &publisher{children: children, committed: func(int) error { return nil }}
	p.stop = func() (err error) {
		for _, c := range p.children {
			err = errors.Join(err, c.stop())
		}
		return err
	}
	return p
}

// memory is the maximum resident memory of the processes that run.
func (p *publisher) memory() (megabytes float64, err error) {
	for _, c := range p.children {
		if c.ended() {
			continue
		}
		bytes, err := gauge.PeakMemory(c.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		megabytes += float64(bytes) / (1 << 20)
	}
	return megabytes, nil
}

func (p *publisher) logEnds() (text string) {
	for _, c := range p.children {
		text += fmt.Sprintf("; the log of %s ends:\n%s", c.name, c.logEnd())
	}
	return text
}

// byRelay starts a relay with these flags. If nothing waits for it, it streams.
func byRelay(flags ...string) start {
	return func(ctx context.Context, r *run) (*publisher, error) { return r.startRelays(ctx, [][]string{flags}) }
}

// byShards creates the shards, and starts a relay for each.
func byShards(shards int) start {
	return func(ctx context.Context, r *run) (*publisher, error) {
		if err := r.world.command(ctx, "teardown", "--yes"); err != nil {
			return nil, err
		}
		if err := r.world.command(ctx, "setup", "--shards", fmt.Sprint(shards)); err != nil {
			return nil, err
		}
		var flags [][]string
		for i := range shards {
			flags = append(flags, []string{"--shard", fmt.Sprintf("%d/%d", i, shards)})
		}
		return r.startRelays(ctx, flags)
	}
}

// startRelays starts a relay with each of the flags.
func (r *run) startRelays(ctx context.Context, flags [][]string) (*publisher, error) {
	p := ofChildren()
	var addrs []string
	p.settled = func(ctx context.Context) error {
		return p.awaitSum(ctx, addrs, "cdc_relay_rows_deleted_total", float64(r.total()))
	}
	for _, own := range flags {
		port, err := services.FreePort()
		if err != nil {
			return nil, errors.Join(err, p.stop())
		}
		addrs = append(addrs, "127.0.0.1:"+strconv.Itoa(port))
		args := append([]string{"run", "--http-addr", addrs[len(addrs)-1]}, append(own, r.site.RelayArgs...)...)
		cmd := exec.Command(r.Program, args...)
		cmd.Env = r.world.relayEnvironment()
		relay, err := r.world.startChild("relay", cmd, nil)
		if err != nil {
			return nil, errors.Join(err, p.stop())
		}
		p.children = append(p.children, relay)
	}
	if r.backlog > 0 {
		return p, nil
	}
	const streamTimeout = time.Minute
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	if err := p.awaitSum(ctx, addrs, "cdc_relay_stream_connected", float64(len(flags))); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// awaitSum waits until a metric of all relays together is at least least.
func (p *publisher) awaitSum(ctx context.Context, addrs []string, metric string, least float64) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var sum float64
		for _, addr := range addrs {
			sum += metricOf(ctx, addr, metric)
		}
		if sum >= least {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is %g: %w%s", metric, least, context.Cause(ctx), p.logEnds())
		}
		for _, c := range p.children {
			if c.ended() {
				return errors.Join(fmt.Errorf("%s has ended", c.name), c.failure())
			}
		}
	}
}

// metricOf reads one number of /metrics without labels; 0 if the relay does not answer.
func metricOf(ctx context.Context, addr, name string) float64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	found := regexp.MustCompile(`(?m)^` + name + ` (.*)$`).FindSubmatch(text)
	if err != nil || found == nil {
		return 0
	}
	value, _ := strconv.ParseFloat(string(found[1]), 64)
	return value
}

// byLimit publishes the same messages through the AMQP library, in a process that ends by itself.
func byLimit(_ context.Context, r *run) (*publisher, error) {
	order, err := json.Marshal(limitOrder{
		AMQPURL: r.world.amqp, Spec: r.world.spec, Messages: r.total(), Window: r.window,
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(r.site.Self, "limit")
	cmd.Env = environment()
	limit, err := r.world.startChild("publish", cmd, bytes.NewReader(order))
	if err != nil {
		return nil, err
	}
	p := ofChildren(limit)
	p.settled = limit.await
	return p, nil
}

// byWriter publishes in the writers right after the commit: the lowest possible latency.
func byWriter(_ context.Context, r *run) (*publisher, error) {
	conn, err := dial(r.world.amqp, "bench direct")
	if err != nil {
		return nil, err
	}
	channel, err := confirmingOn(conn, r.window)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var mu sync.Mutex // the channel must not be used concurrently
	waiting, confirmed := make(chan *amqp.DeferredConfirmation, r.window), make(chan error, 1)
	go func() {
		var errs []error
		for confirm := range waiting {
			errs = append(errs, channel.await(confirm))
		}
		confirmed <- errors.Join(errs...)
	}()
	spec, filler := r.world.spec, r.world.spec.Filler()
	return &publisher{
		committed: func(n int) error {
			body := spec.Body(n, filler)
			mu.Lock()
			defer mu.Unlock()
			confirm, err := channel.send(n, spec.Queue(n), body)
			if err == nil {
				waiting <- confirm
			}
			return err
		},
		settled: func(context.Context) error { return nil },
		stop: func() error {
			close(waiting)
			return errors.Join(<-confirmed, conn.Close())
		},
	}, nil
}
