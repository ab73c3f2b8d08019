// Command soak-river publishes from the jobs of River, which applications enqueue in their transactions, as many do
// instead of having an outbox. The soak compares cdc-relay with it; package subject of test/soak says how it is called.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/cdc-relay/cdc-relay/test/peers/peer"
)

const (
	// every is how often River looks for jobs; a second by default, beside LISTEN/NOTIFY.
	every = 50 * time.Millisecond
	// jobTimeout limits a job, and rescueAfter is when River runs the jobs of a killed process again. The defaults are
	// a minute and an hour.
	jobTimeout, rescueAfter = 10 * time.Second, 15 * time.Second
	// retryAfter replaces the fourth power of the number of attempts.
	retryAfter = time.Second
	// stopTimeout limits a stop.
	stopTimeout = 20 * time.Second
)

func main() { peer.Main("soak-river", version("github.com/riverqueue/river"), call) }

func call(ctx context.Context, verb string, pool *pgxpool.Pool) error {
	if verb == "setup" {
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
		if err != nil {
			return err
		}
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return err
	}
	return work(ctx, pool, &broker{url: os.Getenv("AMQP_URL")})
}

// work runs until ctx ends. River fetches no more jobs at once than there are free workers: WORKERS, or 100.
func work(ctx context.Context, pool *pgxpool.Pool, broker *broker) error {
	most, err := strconv.Atoi(cmp.Or(os.Getenv("WORKERS"), "100"))
	if err != nil {
		return fmt.Errorf("WORKERS: %w", err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{broker: broker})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:               map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: most}},
		Workers:              workers,
		FetchCooldown:        every,
		FetchPollInterval:    every,
		JobTimeout:           jobTimeout,
		RescueStuckJobsAfter: rescueAfter,
	})
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return errors.Join(client.Stop(stopping), broker.close())
}

// message is the arguments of a job.
type message struct {
	ID    string `json:"id"`
	Queue string `json:"queue"`
	Body  []byte `json:"body"`
}

// Kind implements river.JobArgs.
func (message) Kind() string { return "publish" }

type worker struct {
	river.WorkerDefaults[message]
	broker *broker
}

// Work publishes one message.
func (w *worker) Work(ctx context.Context, job *river.Job[message]) error {
	return w.broker.publish(ctx, &job.Args)
}

// NextRetry implements river.Worker.
func (w *worker) NextRetry(*river.Job[message]) time.Time { return time.Now().Add(retryAfter) }

// version returns the version of a module.
func version(path string) string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == path {
			return module.Version
		}
	}
	return "unknown " + strings.TrimPrefix(path, "github.com/")
}
