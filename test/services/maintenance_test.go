package services

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A drained node has no clients, no listener and no queue leaders, and the others confirm.
func TestAQuorumQueueIsServedWhileANodeIsInMaintenance(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster := PrivateRabbitMQCluster(t, 3)
	const queue = "kept-by-three"
	drained := cluster.Nodes[0]
	closed := declareQuorumQueue(t, drained.URL(""), queue).NotifyClose(make(chan *amqp.Error, 1))
	at := onlyQuorumQueue(t, cluster, 1)
	if at.Name != queue || len(at.Members) != 3 || len(at.Online) != 3 {
		t.Errorf("the queue: %+v, want three members", at)
	}
	if err := drained.AwaitQuorum(ctx); err != nil {
		t.Fatal(err)
	}
	if err := drained.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	<-closed
	if conn, err := net.Dial("tcp", drained.Addr()); err == nil {
		_ = conn.Close()
		t.Error("the drained node listens")
	}
	if at := onlyQuorumQueue(t, cluster, 1); at.Leader == 0 {
		t.Errorf("the drained node leads the queue: %+v", at)
	}
	if !confirmed(t, confirmingChannel(t, cluster.Nodes[1].URL("")), queue, 30*time.Second) {
		t.Error("no confirm while a node is drained")
	}
	for _, step := range []func(context.Context) error{drained.Stop, drained.Start, drained.Revive, drained.AwaitQuorum} {
		if err := step(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if at := onlyQuorumQueue(t, cluster, 1); !slices.Contains(at.Online, 0) {
		t.Errorf("the revived node is not online: %+v", at)
	}
	if !confirmed(t, confirmingChannel(t, drained.URL("")), queue, 30*time.Second) {
		t.Error("no confirm through the revived node")
	}
}

// declareQuorumQueue declares it on its own connection, which it returns.
func declareQuorumQueue(t *testing.T, url, name string) *amqp.Connection {
	t.Helper()
	conn := dialAMQP(t, url, name)
	arguments := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	if _, err := openChannel(t, conn).QueueDeclare(name, true, false, false, false, arguments); err != nil {
		t.Fatal(err)
	}
	return conn
}

func onlyQuorumQueue(t *testing.T, cluster *RabbitMQCluster, through int) QuorumQueue {
	t.Helper()
	queues, err := cluster.QuorumQueues(t.Context(), through, "/")
	if err != nil {
		t.Fatal(err)
	}
	if len(queues) != 1 {
		t.Fatalf("%d quorum queues, want 1", len(queues))
	}
	return queues[0]
}
