// Command soak-watermill is Watermill's forwarder, from its table in Postgres to RabbitMQ, set up as its documentation
// shows. The soak compares cdc-relay with it; package subject of test/soak says how it is called.
package main

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/peers/peer"
)

// topic decides the names of the tables: watermill_outbox and watermill_offsets_outbox.
const topic = "outbox"

// every is how often an empty table is looked at; a second by default.
const every = 50 * time.Millisecond

func main() { peer.Main("soak-watermill", versions("ThreeDotsLabs/watermill"), call) }

func call(ctx context.Context, verb string, pool *pgxpool.Pool) error {
	log := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))
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
