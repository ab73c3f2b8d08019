package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/relay"
)

// profiledRelay runs the relay with a processor profile of its whole life and a profile of its allocations. It accepts
// only flags that change the speed.
func profiledRelay(ctx context.Context, args []string, stderr io.Writer) (err error) {
	config := relay.DefaultConfig()
	flags := flag.NewFlagSet("relay", flag.ContinueOnError)
	addr := flags.String("http-addr", "", "")
	flags.IntVar(&config.MaxInFlight, "max-in-flight", config.MaxInFlight, "")
	flags.IntVar(&config.BatchSize, "batch-size", config.BatchSize, "")
	flags.DurationVar(&config.PollInterval, "poll-interval", config.PollInterval, "")
	flags.Func("shard", "", func(text string) (err error) {
		config.Shard, err = outbox.ParseShard(text)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	config.DatabaseURL = os.Getenv("CDC_RELAY_DATABASE_URL")
	config.Slot, config.Publication = os.Getenv("CDC_RELAY_SLOT"), os.Getenv("CDC_RELAY_PUBLICATION")
	if config.Table, err = outbox.ParseTable(os.Getenv("CDC_RELAY_TABLE")); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	publisher, err := amqp.New(amqp.Config{
		URL: os.Getenv("CDC_RELAY_AMQP_URL"), MaxInFlight: config.MaxInFlight, SendTimeout: config.SendTimeout,
		Logger: log,
	})
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	r, err := relay.New(config, publisher, log, registry)
	if err != nil {
		return err
	}
	stop, err := startProfile(os.Getenv("CDC_RELAY_BENCH_PROFILE"))
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr: *addr, Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), ReadHeaderTimeout: time.Second,
	}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	err = errors.Join(r.Run(ctx), stop(), server.Close())
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// startProfile starts a profile; stop writes it to files that begin with prefix. Relays of several shards start in the
// same second.
func startProfile(prefix string) (stop func() error, err error) {
	name := fmt.Sprintf("%s-%s-%d", prefix, time.Now().Format("150405"), os.Getpid())
	processor, err := os.Create(name + ".cpu.pprof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(processor); err != nil {
		return nil, errors.Join(err, processor.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		memory, err := os.Create(name + ".allocs.pprof")
		if err != nil {
			return errors.Join(err, processor.Close())
		}
		runtime.GC() // the heap profile is as of the last collection
		return errors.Join(pprof.Lookup("allocs").WriteTo(memory, 0), memory.Close(), processor.Close())
	}, nil
}
