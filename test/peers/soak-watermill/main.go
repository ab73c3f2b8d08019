// Command soak-watermill is Watermill's forwarder, from its table in Postgres to RabbitMQ, set up as its documentation
// shows. The soak compares cdc-relay with it; package subject of test/soak says how it is called.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"
)

// topic decides the names of the tables: watermill_outbox and watermill_offsets_outbox.
const topic = "outbox"

// every is how often an empty table is looked at; a second by default.
const every = 50 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := call(ctx, os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, "soak-watermill:", err)
		os.Exit(1)
	}
}

func call(ctx context.Context, verb string) error {
	if verb == "version" {
		fmt.Println(versions("ThreeDotsLabs/watermill"))
		return nil
	}
	log := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		SchemaAdapter:    sql.DefaultPostgreSQLSchema{},
		OffsetsAdapter:   sql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
		PollInterval:     every,
	}, log)
	if err != nil {
		return err
	}
	if verb == "setup" {
		return subscriber.SubscribeInitialize(topic)
	}
	return forward(ctx, subscriber, log)
}

// forward runs until ctx ends.
func forward(ctx context.Context, subscriber *sql.Subscriber, log watermill.LoggerAdapter) error {
	config := amqp.NewDurableQueueConfig(os.Getenv("AMQP_URL"))
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = 1 // by default it opens a channel for each message, which is slow
	config.Marshaler = amqp.DefaultMarshaler{PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
		p.MessageId, _ = p.Headers[amqp.DefaultMessageUUIDHeaderKey].(string)
		return p
	}}
	publisher, err := amqp.NewPublisher(config, log)
	if err != nil {
		return err
	}
	f, err := forwarder.NewForwarder(subscriber, publisher, log, forwarder.Config{ForwarderTopic: topic})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

// versions lists the modules whose path contains the text.
func versions(of string) string {
	info, _ := debug.ReadBuildInfo()
	var found []string
	for _, module := range info.Deps {
		if strings.Contains(module.Path, of) {
			_, name, _ := strings.Cut(module.Path, "/")
			found = append(found, name+" "+module.Version)
		}
	}
	return strings.Join(found, ", ")
}
