package amqp

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// With one socket, the kernel would try again only after 1, 3 and 7 seconds.
func TestConnectingIsRetriedWhilePacketsAreDropped(t *testing.T) {
	broker := services.SharedRabbitMQ(t)
	deaf := services.NewDeaf(t)
	p, err := New(Config{URL: withHost(t, broker.VHost(t), deaf.Addr()), SendTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, p)
	deaf.AwaitAttempts(t, 3)
	deaf.Hear(t, broker.Addr())
	r.AwaitPhase(t, publish.Ready)
}
