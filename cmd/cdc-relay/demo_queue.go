package main

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// demoQueue is an exclusive queue: the broker deletes it when this process disconnects.
type demoQueue struct {
	conn       *amqp.Connection
	name       string
	deliveries <-chan amqp.Delivery
	closed     chan *amqp.Error
}

func openDemoQueue(amqpURL string) (*demoQueue, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("cdc-relay demo")
	conn, err := amqp.DialConfig(amqpURL, amqp.Config{
		Heartbeat:  10 * time.Second,
		Dial:       amqp.DefaultDial(connectTimeout),
		Properties: properties,
	})
	if err != nil {
		return nil, brokerError(amqpURL, err)
	}
	q := &demoQueue{conn: conn, closed: conn.NotifyClose(make(chan *amqp.Error, 1))}
	if err := q.open(); err != nil {
		q.close()
		return nil, fmt.Errorf("create a queue in RabbitMQ: %w", err)
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

// brokerError names the broker without its password.
func brokerError(amqpURL string, err error) error {
	address := "RabbitMQ"
	if u, parseErr := url.Parse(amqpURL); parseErr == nil {
		address = fmt.Sprintf("RabbitMQ at %s, virtual host %q", u.Host, u.Path)
	}
	hint := "# check that RabbitMQ runs there, and host and port in --amqp-url (CDC_RELAY_AMQP_URL)"
	var amqpErr *amqp.Error
	if errors.As(err, &amqpErr) {
		hint = "# check user, password and virtual host in --amqp-url (CDC_RELAY_AMQP_URL), and the user's permissions"
	}
	return hinted{fmt.Errorf("connect to %s: %w", address, err), hint}
}
