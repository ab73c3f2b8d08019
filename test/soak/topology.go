package soak

import (
	"fmt"
	"hash/fnv"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/program"
)

// Besides the default exchange there are a direct and a topic exchange, both bound to every queue. The routing key of
// the direct exchange is the name of the queue, that of the topic exchange begins with this name and a dot.
const directExchange, topicExchange = "soak.direct", "soak.topic"

// plainQueues and keyedQueues are the numbers of queues for messages without and with an ordering key. A key always
// goes to the same queue, which has one consumer, so that its order is visible.
const plainQueues, keyedQueues = 3, 3

func plainQueue(i int) string { return fmt.Sprintf("soak.plain.%d", i) }
func keyedQueue(i int) string { return fmt.Sprintf("soak.keyed.%d", i) }

func allQueues() (names []string) {
	for i := range plainQueues {
		names = append(names, plainQueue(i))
	}
	for i := range keyedQueues {
		names = append(names, keyedQueue(i))
	}
	return names
}

// queueOf returns the queue of an ordering key.
func queueOf(key string) string {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key)) // never fails
	return keyedQueue(int(hash.Sum32() % keyedQueues))
}

// declare creates the missing exchanges, queues and bindings.
func declare(broker string) error {
	conn, err := program.Dial(broker, "cdc-relay-soak topology")
	if err != nil {
		return err
	}
	defer program.HangUp(conn)
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	for name, kind := range map[string]string{directExchange: amqp.ExchangeDirect, topicExchange: amqp.ExchangeTopic} {
		if err := channel.ExchangeDeclare(name, kind, true, false, false, false, nil); err != nil {
			return fmt.Errorf("declare the exchange %s: %w", name, err)
		}
	}
	for _, queue := range allQueues() {
		if err := declareQueue(channel, queue); err != nil {
			return fmt.Errorf("declare the queue %s: %w", queue, err)
		}
	}
	return nil
}

func declareQueue(channel *amqp.Channel, queue string) error {
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	if err := channel.QueueBind(queue, queue, directExchange, false, nil); err != nil {
		return err
	}
	return channel.QueueBind(queue, queue+".#", topicExchange, false, nil)
}
