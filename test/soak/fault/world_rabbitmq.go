package fault

import (
	"context"
	"net/url"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// On a private broker a run has its own virtual host, and the relays log in as their own user: faults take permissions
// from it that writers and consumers keep.
const (
	runVHost      = "soak"
	relayUser     = "relay"
	relayPassword = "relay"
)

// clusterNodes is the smallest cluster that can lose its majority.
const clusterNodes = 3

// largestMessage is the limit of a private broker in bytes: above the writers' messages and below poison.
const largestMessage = "max_message_size = 4194304"

func (w *World) provideRabbitMQ(ctx context.Context) error {
	if err := w.startRabbitMQ(ctx); err != nil {
		return err
	}
	if err := w.RabbitMQ.AddVHost(ctx, runVHost); err != nil {
		return err
	}
	if err := w.RabbitMQ.AddUser(ctx, relayUser, relayPassword); err != nil {
		return err
	}
	w.Broker = w.RabbitMQ.URL(runVHost)
	address, err := url.Parse(w.Broker)
	if err != nil {
		return err
	}
	address.User = url.UserPassword(relayUser, relayPassword)
	w.relayBroker = address.String()
	return w.RabbitMQ.Permit(ctx, runVHost, relayUser, services.AllPermissions())
}

func (w *World) startRabbitMQ(ctx context.Context) (err error) {
	options := services.Options{Private: true, Settings: []string{largestMessage}, Log: w.Log}
	if !w.Cluster {
		w.RabbitMQ, err = services.StartRabbitMQ(ctx, options)
		return err
	}
	w.nodes, err = services.StartRabbitMQCluster(ctx, clusterNodes, options)
	if err == nil {
		w.RabbitMQ = w.nodes.Nodes[0]
	}
	return err
}

func (w *World) closeRabbitMQ(ctx context.Context) error {
	switch {
	case w.nodes != nil:
		return w.nodes.Close(ctx)
	case w.RabbitMQ != nil:
		return w.RabbitMQ.Close(ctx)
	}
	return nil
}

// RabbitMQProxies returns the proxies between all relays and the broker.
func (w *World) RabbitMQProxies() []*services.Proxy {
	var proxies []*services.Proxy
	for _, relay := range w.Relays {
		proxies = append(proxies, relay.RabbitMQ...)
	}
	return proxies
}
