package demo

import (
	"errors"
	"fmt"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// exclusiveQueue receives the orders. The broker deletes the queue when this process disconnects.
type exclusiveQueue struct {
	conn       *amqp091.Connection
	name       string
	deliveries <-chan amqp091.Delivery
	closed     chan *amqp091.Error
}

// openQueue connects to the first node that answers.
func openQueue(address amqpdial.Address) (*exclusiveQueue, error) {
	nodes, err := address.Nodes()
	if err != nil {
		failed := address.Unread(err)
		return nil, failure.WithHint(failed, failed.Hint())
	}
	for _, node := range nodes {
		var conn *amqp091.Connection
		if conn, err = dial(node); err != nil {
			err = dialError(address.Explain(node, err))
			continue
		}
		q := &exclusiveQueue{conn: conn, closed: conn.NotifyClose(make(chan *amqp091.Error, 1))}
		if err := q.open(); err != nil {
			q.close()
			return nil, queueError(node, err)
		}
		return q, nil
	}
	return nil, err
}

func dial(node amqpdial.Node) (*amqp091.Connection, error) {
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName("cdc-relay demo")
	return node.Dial(amqp091.Config{
		Heartbeat:  10 * time.Second,
		Dial:       amqp091.DefaultDial(serverTimeout),
		Properties: properties,
	})
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
func dialError(failed *amqpdial.DialError) error {
	hint := strings.Replace(failed.Hint(), "'' '.*' ''", permissions, 1)
	return failure.WithHint(fmt.Errorf("connect to RabbitMQ: %w", failed), hint)
}

// queueError explains why the queue cannot be created or read.
func queueError(node amqpdial.Node, err error) error {
	var exception *amqp091.Error
	if !errors.As(err, &exception) || exception.Code != amqp091.AccessRefused {
		return failure.WithHint(
			fmt.Errorf("create a queue in RabbitMQ: %w", err),
			"# see RabbitMQ's log; a policy or a limit of the virtual host may forbid the queue",
		)
	}
	return failure.WithHint(
		fmt.Errorf("RabbitMQ user %q may not create and read the queue of the demo: %w", node.URI.Username, err),
		fmt.Sprintf("rabbitmqctl set_permissions -p %s %s %s"+
			"  # it replaces the user's permissions; or use another user in --amqp-url",
			problem.ShellWord(node.URI.Vhost), problem.ShellWord(node.URI.Username), permissions),
	)
}
