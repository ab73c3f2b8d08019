package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// shared holds the servers of one test process. Each is started at its first use. It is the only package-level state:
// servers take seconds to start, and all tests of a binary share them.
var shared struct {
	postgres  lazy[*Postgres]
	rabbitmq  lazy[*RabbitMQ]
	closers   closers
	templates sync.Map // lazy[string] by name
}

// lazy creates a value once. A failure is final: the next test would only wait for the same error.
type lazy[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (l *lazy[T]) get(make func() (T, error)) (T, error) {
	l.once.Do(func() { l.value, l.err = make() })
	return l.value, l.err
}

// closers are closed after the tests, or when the tests are interrupted.
type closers struct {
	mu   sync.Mutex
	list []func(context.Context) error
}

func (c *closers) add(closer func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, closer)
}

// close runs the newest closer first, because it may use what was started before it.
func (c *closers) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	var errs []error
	for _, closer := range slices.Backward(c.list) {
		errs = append(errs, closer(ctx))
	}
	c.list = nil
	return errors.Join(errs...)
}

// Main is the TestMain of every package that uses servers. It runs the tests, stops the servers, also after an
// interrupt, and fails if a goroutine is left.
func Main(m *testing.M, options ...goleak.Option) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	watching, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-interrupted:
			_ = shared.closers.close()
			os.Exit(130)
		case <-finished:
		}
	}()
	code := m.Run()
	signal.Stop(interrupted)
	close(finished)
	<-watching
	if err := shared.closers.close(); err != nil {
		fmt.Fprintln(os.Stderr, "stop services:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left:", err)
			code = 1
		}
	}
	os.Exit(code)
}
