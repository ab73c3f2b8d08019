package demo

import (
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// permissions are what the demo needs, as rabbitmqctl set_permissions takes them (configure, write, read): to create
// and to read a queue, whose name RabbitMQ chooses. The write permission is the relay's, which often has the same user.
const permissions = `'^amq\.gen-' '.*' '^amq\.gen-'`

// connect connects to the first node that answers.
func connect(address amqpdial.Address) (*amqp.Connection, amqpdial.Node, error) {
	nodes, err := address.Nodes()
	if err != nil {
		return nil, amqpdial.Node{}, address.Unread(err)
	}
	config := amqp.Config{
		Heartbeat: 10 * time.Second, Dial: amqp.DefaultDial(serverTimeout), Properties: amqp.NewConnectionProperties(),
	}
	config.Properties.SetClientConnectionName("cdc-relay demo")
	var failed *amqpdial.DialError
	for _, node := range nodes {
		conn, err := node.Dial(config)
		if err == nil {
			return conn, node, nil
		}
		failed = address.Explain(node, err)
	}
	return nil, amqpdial.Node{}, failure.WithHint(fmt.Errorf("connect to RabbitMQ: %w", failed),
		strings.Replace(failed.Hint(), "'' '.*' ''", permissions, 1))
}

// openQueue creates a queue, which RabbitMQ deletes when the connection ends, and consumes it.
func openQueue(conn *amqp.Connection, node amqpdial.Node) (string, <-chan amqp.Delivery, error) {
	channel, err := conn.Channel()
	if err != nil {
		return "", nil, queueError(node, err)
	}
	const durable, autoDelete, exclusive, noWait = false, true, true, false
	queue, err := channel.QueueDeclare("", durable, autoDelete, exclusive, noWait, nil)
	if err != nil {
		return "", nil, queueError(node, err)
	}
	const consumer, autoAck, noLocal = "", true, false
	deliveries, err := channel.Consume(queue.Name, consumer, autoAck, exclusive, noLocal, noWait, nil)
	if err != nil {
		return "", nil, queueError(node, err)
	}
	return queue.Name, deliveries, nil
}

// queueError explains why the queue cannot be created or read.
func queueError(node amqpdial.Node, err error) error {
	var exception *amqp.Error
	if !errors.As(err, &exception) || exception.Code != amqp.AccessRefused {
		return failure.WithHint(fmt.Errorf("create a queue in RabbitMQ: %w", err),
			"# see RabbitMQ's log; a policy or a limit of the virtual host may forbid the queue")
	}
	return failure.WithHint(
		fmt.Errorf("RabbitMQ user %q may not create and read the queue of the demo: %w", node.URI.Username, err),
		fmt.Sprintf("rabbitmqctl set_permissions -p %s %s %s"+
			"  # it replaces the user's permissions; or use another user in --amqp-url",
			problem.ShellWord(node.URI.Vhost), problem.ShellWord(node.URI.Username), permissions),
	)
}
