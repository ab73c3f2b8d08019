package fault

import (
	"context"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// runVHost is the virtual host of a run on a private broker.
const runVHost = "soak"

func (w *World) provideRabbitMQ(ctx context.Context) error {
	w.Broker = w.AMQPURL
	if w.Broker == "" {
		broker, err := services.StartRabbitMQ(ctx, services.Options{Private: true, Settings: w.RabbitMQSettings, Log: w.Log})
		if err != nil {
			return err
		}
		w.RabbitMQ, w.Broker = broker, broker.URL(runVHost)
		if err := broker.AddVHost(ctx, runVHost); err != nil {
			return err
		}
	}
	w.relayBroker = w.Broker
	return nil
}

// RabbitMQProxies are the proxies between the relays and the broker, of all relays.
func (w *World) RabbitMQProxies() []*services.Proxy {
	var proxies []*services.Proxy
	for _, relay := range w.Relays {
		proxies = append(proxies, relay.RabbitMQ...)
	}
	return proxies
}
