package publish

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// TestABrokerIsAskedAnewWhilePacketsAreDropped: the kernel alone would ask again after 1, 3, 7 seconds, by one socket.
func TestABrokerIsAskedAnewWhilePacketsAreDropped(t *testing.T) {
	broker := services.SharedRabbitMQ(t)
	deaf := services.NewDeaf(t)
	p, err := NewAMQP(AMQPConfig{URL: withHost(t, broker.VHost(t), deaf.Addr()), SendTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, p)
	deaf.AwaitAttempts(t, 3)
	deaf.Hear(t, broker.Addr())
	r.awaitPhase(t, Ready)
}
