package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/publish/amqp"
)

// demoQueue is an exclusive queue: the broker deletes it when this process disconnects.
type demoQueue struct {
	conn       *amqp091.Connection
	name       string
	deliveries <-chan amqp091.Delivery
	closed     chan *amqp091.Error
}

func openDemoQueue(amqpURL string) (*demoQueue, error) {
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName("cdc-relay demo")
	conn, err := amqp091.DialConfig(amqpURL, amqp091.Config{
		Heartbeat:  10 * time.Second,
		Dial:       amqp091.DefaultDial(connectTimeout),
		Properties: properties,
	})
	if err != nil {
		return nil, demoDialError(amqpURL, err)
	}
	q := &demoQueue{conn: conn, closed: conn.NotifyClose(make(chan *amqp091.Error, 1))}
	if err := q.open(); err != nil {
		q.close()
		return nil, demoQueueError(amqpURL, err)
	}
	return q, nil
}

func (q *demoQueue) open() error {
	channel, err := q.conn.Channel()
	if err != nil {
		return err
	}
	const durable, autoDelete, exclusive, noWait = false, true, true, false
	queue, err := channel.QueueDeclare("", durable, autoDelete, exclusive, noWait, nil)
	if err != nil {
		return err
	}
	q.name = queue.Name
	const consumer, autoAck, noLocal = "", true, false
	q.deliveries, err = channel.Consume(queue.Name, consumer, autoAck, exclusive, noLocal, noWait, nil)
	return err
}

// reason returns why the connection was closed.
func (q *demoQueue) reason() error {
	select {
	case err := <-q.closed:
		if err != nil {
			return err
		}
	default:
	}
	return errors.New("RabbitMQ ended the consumer")
}

func (q *demoQueue) close() {
	q.conn.CloseDeadline(time.Now().Add(time.Second)) //nolint:errcheck // the broker notices the end of the connection in any case
}

// demoPermissions are what the demo needs, as rabbitmqctl set_permissions takes them (configure, write, read): to create
// and to read a queue, whose name RabbitMQ chooses. The write permission is the relay's, which often has the same user.
const demoPermissions = `'^amq\.gen-' '.*' '^amq\.gen-'`

// demoDialError explains why there is no connection, without the password.
func demoDialError(amqpURL string, err error) error {
	uri, parseErr := amqp091.ParseURI(amqpURL)
	if parseErr != nil {
		return errors.New("the AMQP URL cannot be read") // it was validated before
	}
	failed := amqp.Undialled(uri, err)
	return failure.WithHint(fmt.Errorf("connect to RabbitMQ: %w", failed), strings.Replace(failed.Hint(), "'' '.*' ''", demoPermissions, 1))
}

// demoQueueError explains why the queue cannot be created or read.
func demoQueueError(amqpURL string, err error) error {
	var exception *amqp091.Error
	uri, parseErr := amqp091.ParseURI(amqpURL)
	if parseErr != nil || !errors.As(err, &exception) || exception.Code != amqp091.AccessRefused {
		return failure.WithHint(fmt.Errorf("create a queue in RabbitMQ: %w", err), "# see RabbitMQ's log; a policy or a limit of the virtual host may forbid the queue")
	}
	return failure.WithHint(
		fmt.Errorf("RabbitMQ user %q may not create and read the queue of the demo: %w", uri.Username, err),
		fmt.Sprintf("rabbitmqctl set_permissions -p %s %s %s  # it replaces what the user had; or name another user in --amqp-url",
			problem.ShellWord(uri.Vhost), problem.ShellWord(uri.Username), demoPermissions),
	)
}
