// Package statsd sends the metrics of a Prometheus registry to DogStatsD, so that each metric is defined once. All it
// knows of the relay is the prefix of its metrics.
package statsd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/DataDog/datadog-go/v5/statsd"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// target says where to send the metrics, and under which names.
type target struct {
	// addr is host:port for UDP, or unix:///path of a socket.
	addr string
	// prefix comes before each name, followed by a dot; may be empty.
	prefix string
	// tags are added to each metric, in the form name:value.
	tags []string
}

// unixPrefix begins the address of a socket.
const unixPrefix = "unix://"

// Check checks an address, as New takes it; "" is valid, too: the metrics are not sent.
func Check(address string) error {
	if address == "" {
		return nil
	}
	_, err := parse(address)
	return err
}

func parse(address string) (target, error) {
	addr, query, _ := strings.Cut(address, "?")
	to := target{addr: addr, prefix: "cdc_relay"}
	given, err := url.ParseQuery(strings.ReplaceAll(query, "+", "%2B")) // a plus is no space here
	if err != nil {
		return to, fmt.Errorf("%q: want parameters such as ?prefix=shop&tags=env:prod,team:shop", address)
	}
	for name, values := range given {
		switch name {
		case "prefix":
			to.prefix = values[0]
		case "tags":
			to.tags = strings.Split(strings.ReplaceAll(values[0], ", ", ","), ",")
		default:
			return to, fmt.Errorf("%q: parameter %s is unknown; known are prefix, tags", address, name)
		}
	}
	return to, errors.Join(to.checkAddr(), to.checkNames())
}

func (t target) checkAddr() error {
	if path, ok := strings.CutPrefix(t.addr, unixPrefix); ok {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%q: want unix:// and an absolute path, such as unix:///var/run/datadog/dsd.socket",
				t.addr)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(t.addr)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q: want host:port, such as 127.0.0.1:8125, or unix:///path", t.addr)
	}
	if _, err := net.LookupPort("udp", port); err != nil {
		return fmt.Errorf("%q: %q is not a port", t.addr, port)
	}
	return nil
}

func (t target) checkNames() error {
	if !regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9_.]*)?$`).MatchString(t.prefix) {
		return fmt.Errorf("prefix %q: want letters, digits, dots and underscores, a letter first", t.prefix)
	}
	for _, tag := range t.tags {
		if tag == "" || strings.ContainsAny(tag, "|#\n") || len(tag) > 200 {
			return fmt.Errorf("tag %q: want name:value, of at most 200 bytes, without the characters | and #", tag)
		}
	}
	return nil
}

const (
	// every is how often metrics are sent.
	every = 10 * time.Second
	// timeout limits each step of sending.
	timeout = 2 * time.Second
)

// Bridge sends the metrics of one registry. It counts from zero: the first time, it sends the whole value of each
// counter.
type Bridge struct {
	target   target
	gatherer prometheus.Gatherer
	log      *slog.Logger
	seen     state
	// failing: the last attempt failed. Only the first failure in a row is logged.
	failing bool
}

// New creates a bridge to an address: host:port for UDP, or unix:///path of a socket. Its parameters may be the prefix
// of the metrics' names and tags for each metric: ?prefix=shop&tags=env:prod,team:shop. New does not connect.
func New(address string, gatherer prometheus.Gatherer, log *slog.Logger) (*Bridge, error) {
	to, err := parse(address)
	if err != nil {
		return nil, err
	}
	return &Bridge{target: to, gatherer: gatherer, log: log, seen: newState()}, nil
}

// Run sends every ten seconds until ctx is done, and then once more.
func (b *Bridge) Run(ctx context.Context) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			b.Send()
		case <-ctx.Done():
			b.Send()
			return
		}
	}
}

// Send sends the changes since the last call. It must not be called while Run runs. If nothing arrived, the changes are
// sent the next time; if a part arrived, the rest is lost.
func (b *Bridge) Send() {
	err := b.send()
	switch {
	case err != nil && !b.failing:
		b.log.Warn("cannot send metrics to DogStatsD: messages unaffected; retrying every ten seconds",
			"event", event.StatsdDown, "address", b.target.addr, "error", err)
	case err == nil && b.failing:
		b.log.Info("sending metrics to DogStatsD again", "event", event.StatsdUp, "address", b.target.addr)
	}
	b.failing = err != nil
}

func (b *Bridge) send() error {
	families, err := b.gatherer.Gather()
	if err != nil && len(families) == 0 {
		return fmt.Errorf("gather metrics: %w", err)
	}
	var first atomic.Pointer[error] // the client has several goroutines
	note := func(err error) { first.CompareAndSwap(nil, &err) }
	client, err := b.connect(note)
	if err != nil {
		return fmt.Errorf("connect to DogStatsD: %w", err)
	}
	next := b.seen.report(client, families)
	if err := client.Close(); err != nil {
		note(err)
	}
	failed := first.Load()
	if failed == nil || b.arrived(client) {
		b.seen = next
	}
	if failed == nil {
		return nil
	}
	return *failed
}

// arrived reports whether a part arrived before an error: it must not be sent again. It returns false for UDP, which
// accepts a packet without a listener and reports the error on the next packet.
func (b *Bridge) arrived(client *statsd.Client) bool {
	return strings.HasPrefix(b.target.addr, unixPrefix) && client.GetTelemetry().TotalPayloadsSent > 0
}

// connect creates a client for one sending, so that it finds an agent that has moved.
func (b *Bridge) connect(failed statsd.ErrorHandler) (*statsd.Client, error) {
	// The client's own metrics are sent every ten seconds: no client lives that long.
	options := []statsd.Option{
		statsd.WithTags(b.target.tags), statsd.WithErrorHandler(failed), statsd.WithWorkersCount(1),
		statsd.WithoutClientSideAggregation(),
		statsd.WithConnectTimeout(timeout), statsd.WithWriteTimeout(timeout),
	}
	if b.target.prefix != "" {
		options = append(options, statsd.WithNamespace(b.target.prefix))
	}
	return statsd.New(b.target.addr, options...)
}
