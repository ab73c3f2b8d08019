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
	must(t, err)
	r := start(t, p)
	deaf.AwaitAttempts(t, 3)
	deaf.Hear(t, broker.Addr())
	r.AwaitPhase(t, publish.Ready)
}

// A name may have several addresses. Go's dialer gives the time limit to the first one if it is silent.
func TestANameWithASilentFirstAddressIsConnectedTo(t *testing.T) {
	broker := services.SharedRabbitMQ(t)
	deaf := services.NewDeaf(t)
	name := deaf.Named(t, broker.Addr())
	for _, timeout := range []time.Duration{500 * time.Millisecond, time.Minute} {
		p, err := New(Config{URL: withHost(t, broker.VHost(t), name), SendTimeout: timeout})
		must(t, err)
		r := start(t, p)
		r.AwaitPhase(t, publish.Ready)
	}
}
