// Package load is the traffic of a soak run: writers that insert messages into the outbox as applications do, consumers
// that receive them from RabbitMQ, and a look at the tables at the end. They report to a recorder and judge nothing.
//
// Writers and consumers never give up: servers go down and come back during a run.
package load

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// dialTimeout limits TCP and the AMQP handshake together.
	dialTimeout = 5 * time.Second
	// heartbeat is the interval that is requested from the broker. After a few without an answer it counts as dead.
	heartbeat = 2 * time.Second
)

// dial connects to the broker.
func dial(amqpURL, name string) (*amqp.Connection, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("cdc-relay-soak " + name)
	conn, err := amqp.DialConfig(amqpURL, amqp.Config{
		Dial: amqp.DefaultDial(dialTimeout), Heartbeat: heartbeat, Properties: properties,
	})
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	return conn, nil
}

// hangUp closes a connection in order if the broker answers within a second.
func hangUp(conn *amqp.Connection) { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }
