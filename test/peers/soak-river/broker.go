package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

// broker is a channel that is opened again when it is needed.
type broker struct {
	url string

	mu      sync.Mutex
	conn    *amqp091.Connection
	channel *amqp091.Channel
}

// publish returns when the message is confirmed.
func (b *broker) publish(ctx context.Context, m *message) error {
	channel, err := b.open()
	if err != nil {
		return err
	}
	confirm, err := channel.PublishWithDeferredConfirm("", m.Queue, false, false, amqp091.Publishing{
		ContentType: "application/json", DeliveryMode: amqp091.Persistent, MessageId: m.ID, Body: m.Body,
	})
	if err != nil {
		return err
	}
	confirmed, err := confirm.WaitContext(ctx)
	if err == nil && !confirmed {
		err = fmt.Errorf("message %s was not confirmed", m.ID)
	}
	return err
}

func (b *broker) open() (*amqp091.Channel, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.channel != nil && !b.channel.IsClosed() {
		return b.channel, nil
	}
	if b.conn != nil {
		_ = b.conn.CloseDeadline(time.Now().Add(time.Second)) // the channel is closed, or the connection is
	}
	var err error
	config := amqp091.Config{Dial: amqp091.DefaultDial(jobTimeout), Heartbeat: jobTimeout}
	b.conn, err = amqp091.DialConfig(b.url, config)
	if err != nil {
		return nil, err
	}
	channel, err := b.conn.Channel()
	if err != nil {
		return nil, err
	}
	b.channel = channel
	return channel, channel.Confirm(false)
}

func (b *broker) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn == nil {
		return nil
	}
	return b.conn.CloseDeadline(time.Now().Add(time.Second))
}
