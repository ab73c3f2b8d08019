package services

import (
	"net/url"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// TestBrokerAsAnOperatorTreatsIt: alarm, policy, permission and closed connections, one after the other on one broker.
func TestBrokerAsAnOperatorTreatsIt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	broker, err := StartRabbitMQ(ctx, localOnly(t))
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, broker.Close)
	const vhost, user, queue = "a vhost", "somebody", "its-queue"
	if err := broker.AddVHost(ctx, vhost); err != nil {
		t.Fatal(err)
	}
	if err := broker.AddUser(ctx, user, "s/ecret"); err != nil {
		t.Fatal(err)
	}
	if err := broker.Permit(ctx, vhost, user, AllPermissions()); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(broker.URL(vhost))
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(user, "s/ecret")
	conn := named(t, address.String(), "ours 1")
	other := named(t, broker.URL(""), "theirs 1").NotifyClose(make(chan *amqp.Error, 1))

	t.Run("alarm", func(t *testing.T) {
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
	})
	t.Run("policy", func(t *testing.T) {
		channel := openChannel(t, conn)
		if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
		refusing := Policy{
			Pattern: "^its-queue$", ApplyTo: ApplyToQueues,
			Definition: map[string]any{"max-length": 0, "overflow": "reject-publish"},
		}
		if err := broker.SetPolicy(ctx, vhost, "full", refusing); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return !acked(t, channel, queue) })
		if err := broker.DeletePolicy(ctx, vhost, "full"); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return acked(t, channel, queue) })
	})
	t.Run("permission", func(t *testing.T) {
		channel := openChannel(t, conn)
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		if !acked(t, channel, queue) {
			t.Error("not permitted from the start")
		}
		if err := broker.Permit(ctx, vhost, user, Permissions{}); err != nil {
			t.Fatal(err)
		}
		if !acked(t, channel, queue) {
			t.Error("an open channel has forgotten what it may do")
		}
		if err := broker.ForgetPermissions(ctx); err != nil {
			t.Fatal(err)
		}
		if err := channel.Publish("", queue, false, false, amqp.Publishing{}); err != nil {
			t.Fatal(err)
		}
		if reason := <-closed; reason == nil || reason.Code != amqp.AccessRefused {
			t.Errorf("the channel was closed for %v", reason)
		}
	})
	t.Run("connections", func(t *testing.T) {
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
	})
}

func named(t *testing.T, address, name string) *amqp.Connection {
	t.Helper()
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp.DialConfig(address, amqp.Config{Properties: properties})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
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

// await asks again until it holds; the test's own time limit ends it. What it asks goes to the broker and back.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	for !holds() {
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
	}
}
