package services

import (
	"context"
	"net/url"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// The virtual host, user and queue of the test.
const (
	testVHost = "a vhost"
	testUser  = "somebody"
	testQueue = "its-queue"
)

// Covers alarm, policy, permission and closed connections, one after the other on one broker.
func TestAdministrationOfTheBroker(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	broker, err := StartRabbitMQ(ctx, localOnly(t))
	Need(t, err)
	closeAfter(t, broker.Close)
	if err := broker.AddVHost(ctx, testVHost); err != nil {
		t.Fatal(err)
	}
	if err := broker.AddUser(ctx, testUser, "s/ecret"); err != nil {
		t.Fatal(err)
	}
	if err := broker.Permit(ctx, testVHost, testUser, AllPermissions()); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(broker.URL(testVHost))
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(testUser, "s/ecret")
	conn := dialAMQP(t, address.String(), "ours 1")
	for _, part := range []struct {
		name string
		try  func(*testing.T, *RabbitMQ, *amqp.Connection)
	}{
		{"alarm", operatorAlarm},
		{"policy", operatorPolicy},
		{"definitions", operatorDefinitions},
		{"permission", operatorPermission},
		{"connections", operatorConnections},
		{"flush", operatorFlush},
	} {
		t.Run(part.name, func(t *testing.T) { part.try(t, broker, conn) })
	}
}

func operatorAlarm(t *testing.T, broker *RabbitMQ, conn *amqp.Connection) {
	ctx := t.Context()
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 2))
	if err := broker.RaiseMemoryAlarm(ctx); err != nil {
		t.Fatal(err)
	}
	if err := openChannel(t, conn).Publish("", "nobody", false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	if b := <-blocked; !b.Active {
		t.Error("not blocked")
	}
	if err := broker.ClearMemoryAlarm(ctx); err != nil {
		t.Fatal(err)
	}
	if b := <-blocked; b.Active {
		t.Error("still blocked")
	}
}

func operatorPolicy(t *testing.T, broker *RabbitMQ, conn *amqp.Connection) {
	ctx := t.Context()
	channel := openChannel(t, conn)
	if _, err := channel.QueueDeclare(testQueue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	refusing := Policy{
		Pattern: "^its-queue$", ApplyTo: ApplyToQueues,
		Definition: map[string]any{"max-length": 0, "overflow": "reject-publish"},
	}
	if err := broker.SetPolicy(ctx, testVHost, "full", refusing); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the queue rejects", func() bool { return !acked(t, channel, testQueue) })
	if err := broker.DeletePolicy(ctx, testVHost, "full"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the queue takes messages again", func() bool { return acked(t, channel, testQueue) })
}

func operatorDefinitions(t *testing.T, broker *RabbitMQ, conn *amqp.Connection) {
	ctx := t.Context()
	channel := openChannel(t, conn)
	if err := channel.ExchangeDeclare("its.exchange", amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := channel.QueueBind(testQueue, "", "its.exchange", false, nil); err != nil {
		t.Fatal(err)
	}
	there, err := broker.Definitions(ctx, testVHost)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(there.Exchanges, []string{"its.exchange"}) || !slices.Equal(there.Queues, []string{testQueue}) {
		t.Errorf("the definitions are %v, %v", there.Exchanges, there.Queues)
	}
	if err := broker.DeleteExchange(ctx, testVHost, "its.exchange"); err != nil {
		t.Fatal(err)
	}
	if err := broker.Restore(ctx, testVHost, there); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueuePurge(testQueue, false); err != nil {
		t.Fatal(err)
	}
	if err := channel.Publish("its.exchange", "", true, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "a message is in the queue", func() bool { _, ok, err := channel.Get(testQueue, false); return ok || err != nil })
	if n, err := broker.Unsettled(ctx, testVHost); err != nil || n != 1 {
		t.Errorf("%d messages that nobody has acknowledged, want 1; %v", n, err)
	}
}

func operatorPermission(t *testing.T, broker *RabbitMQ, conn *amqp.Connection) {
	ctx := t.Context()
	channel := openChannel(t, conn)
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	if !acked(t, channel, testQueue) {
		t.Error("not permitted from the start")
	}
	if err := broker.Permit(ctx, testVHost, testUser, Permissions{}); err != nil {
		t.Fatal(err)
	}
	if !acked(t, channel, testQueue) {
		t.Error("an open channel has lost its permissions")
	}
	if err := broker.ForgetPermissions(ctx); err != nil {
		t.Fatal(err)
	}
	if err := channel.Publish("", testQueue, false, false, amqp.Publishing{}); err != nil {
		t.Fatal(err)
	}
	if reason := <-closed; reason == nil || reason.Code != amqp.AccessRefused {
		t.Errorf("the channel was closed for %v", reason)
	}
}

func operatorConnections(t *testing.T, broker *RabbitMQ, conn *amqp.Connection) {
	ctx := t.Context()
	other := dialAMQP(t, broker.URL(""), "theirs 1").NotifyClose(make(chan *amqp.Error, 1))
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	n, err := broker.CloseConnections(ctx, "ours", "the \"operator\"")
	if err != nil || n != 1 {
		t.Fatalf("%d closed, %v", n, err)
	}
	if reason := <-closed; reason == nil || reason.Reason != `CONNECTION_FORCED - the "operator"` {
		t.Errorf("closed for %v", reason)
	}
	select {
	case reason := <-other:
		t.Errorf("another connection was closed for %v", reason)
	default:
	}
	if n, err := broker.CloseConnections(ctx, "", "all"); err != nil || n != 1 {
		t.Fatalf("%d closed, %v", n, err)
	}
	<-other
}

// operatorFlush: without Flush, a kill loses what was declared last.
func operatorFlush(t *testing.T, broker *RabbitMQ, _ *amqp.Connection) {
	ctx := t.Context()
	channel := openChannel(t, dialAMQP(t, broker.URL(testVHost), "flush"))
	if _, err := channel.QueueDeclare("declared-last", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	killed := broker.PID()
	for _, step := range []func(context.Context) error{broker.Flush, broker.Kill, broker.Start} {
		if err := step(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if !gone(killed) {
		t.Error("the killed broker still runs")
	}
	channel = openChannel(t, dialAMQP(t, broker.URL(testVHost), "flush"))
	if _, err := channel.QueueDeclarePassive("declared-last", true, false, false, false, nil); err != nil {
		t.Error(err)
	}
}

func openChannel(t *testing.T, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return channel
}

// acked publishes one message and returns the broker's answer.
func acked(t *testing.T, channel *amqp.Channel, queue string) bool {
	t.Helper()
	confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{})
	if err != nil {
		t.Fatal(err)
	}
	ok, err := confirm.WaitContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ok
}
