package demo

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

// exclusiveQueue receives the orders. The broker deletes the queue when this process disconnects.
type exclusiveQueue struct {
	conn       *amqp091.Connection
	name       string
	deliveries <-chan amqp091.Delivery
	closed     chan *amqp091.Error
}

func openQueue(amqpURL string) (*exclusiveQueue, error) {
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName("cdc-relay demo")
	conn, err := amqp091.DialConfig(amqpURL, amqp091.Config{
		Heartbeat:  10 * time.Second,
		Dial:       amqp091.DefaultDial(serverTimeout),
		Properties: properties,
	})
	if err != nil {
		return nil, dialError(amqpURL, err)
	}
	q := &exclusiveQueue{conn: conn, closed: conn.NotifyClose(make(chan *amqp091.Error, 1))}
	if err := q.open(); err != nil {
		q.close()
		return nil, queueError(amqpURL, err)
	}
	return q, nil
}

func (q *exclusiveQueue) open() error {
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
func (q *exclusiveQueue) reason() error {
	select {
	case err := <-q.closed:
		if err != nil {
			return err
		}
	default:
	}
	return errors.New("RabbitMQ ended the consumer")
}

func (q *exclusiveQueue) close() {
	//nolint:errcheck // the broker notices the end of the connection in any case
	q.conn.CloseDeadline(time.Now().Add(time.Second))
}

// permissions are what the demo needs, as rabbitmqctl set_permissions takes them (configure, write, read): to create
// and to read a queue, whose name RabbitMQ chooses. The write permission is the relay's, which often has the same user.
const permissions = `'^amq\.gen-' '.*' '^amq\.gen-'`

// dialError explains why there is no connection, without the password.
func dialError(amqpURL string, err error) error {
	uri, parseErr := amqp091.ParseURI(amqpURL)
	if parseErr != nil {
		return errors.New("the AMQP URL cannot be read") // it was validated before
	}
	failed := amqp.Undialled(uri, err)
	hint := strings.Replace(failed.Hint(), "'' '.*' ''", permissions, 1)
	return failure.WithHint(fmt.Errorf("connect to RabbitMQ: %w", failed), hint)
}

// queueError explains why the queue cannot be created or read.
func queueError(amqpURL string, err error) error {
	var exception *amqp091.Error
	uri, parseErr := amqp091.ParseURI(amqpURL)
	if parseErr != nil || !errors.As(err, &exception) || exception.Code != amqp091.AccessRefused {
		return failure.WithHint(
			fmt.Errorf("create a queue in RabbitMQ: %w", err),
			"# see RabbitMQ's log; a policy or a limit of the virtual host may forbid the queue",
		)
	}
	return failure.WithHint(
		fmt.Errorf("RabbitMQ user %q may not create and read the queue of the demo: %w", uri.Username, err),
		fmt.Sprintf("rabbitmqctl set_permissions -p %s %s %s"+
			"  # it replaces what the user had; or name another user in --amqp-url",
			problem.ShellWord(uri.Vhost), problem.ShellWord(uri.Username), permissions),
	)
}
