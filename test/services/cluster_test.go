package services

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// With one node of three nothing is confirmed, with two everything is.
func TestQuorumQueueConfirmsOnlyWithAMajority(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := PrivateRabbitMQCluster(t, 3, "heartbeat = 7")
	channel := confirmingChannel(t, cluster.Nodes[0].URL(""))
	const queue = "kept-by-three"
	if _, err := channel.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		t.Fatal(err)
	}
	if !confirmed(t, channel, queue, 30*time.Second) {
		t.Fatal("no confirm with three nodes")
	}
	if err := cluster.Nodes[1].Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if !confirmed(t, channel, queue, 30*time.Second) {
		t.Error("no confirm with two nodes")
	}
	if err := cluster.Nodes[2].Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if confirmed(t, channel, queue, 3*time.Second) {
		t.Error("one node alone sent a confirm")
	}
	if err := cluster.Nodes[2].Resume(ctx); err != nil {
		t.Fatal(err)
	}
	if !confirmed(t, confirmingChannel(t, cluster.Nodes[0].URL("")), queue, 30*time.Second) {
		t.Error("no confirm after the majority was back")
	}
	if err := cluster.Nodes[1].Start(ctx); err != nil {
		t.Fatal(err)
	}
	if !confirmed(t, confirmingChannel(t, cluster.Nodes[1].URL("")), queue, 30*time.Second) {
		t.Error("no confirm through the node that was killed")
	}
}

func confirmingChannel(t *testing.T, address string) *amqp.Channel {
	t.Helper()
	return openChannel(t, dialAMQP(t, address, "confirming"))
}

// confirmed publishes one message and reports whether the broker confirms it in time.
func confirmed(t *testing.T, channel *amqp.Channel, queue string, testTimeout time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqp.Publishing{})
	if err != nil {
		t.Fatal(err)
	}
	acked, err := confirm.WaitContext(ctx)
	return acked && err == nil
}
