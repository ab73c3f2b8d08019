package fault

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// brokerNetworkFaults break the network between the relays and the broker. They also work with a broker that the run
// cannot control.
func brokerNetworkFaults() []Fault {
	blackHole := func(directions ...services.Direction) beginning {
		return troubled(
			func(p *services.Proxy) { p.BlackHole(directions...) },
			func(p *services.Proxy) { p.Resume(directions...) },
		)
	}
	return []Fault{
		{
			Name: "rabbitmq-cut", Duplicates: allInFlight,
			About: "the AMQP connections of the relays, or of one of them, are reset",
			Run: func(_ context.Context, w *World, random *rand.Rand, _ time.Duration) (string, error) {
				detail, proxies := w.somebody(random)
				for _, proxy := range proxies {
					proxy.Cut()
				}
				return detail, nil
			},
		},
		{
			Name: "rabbitmq-refused", Duplicates: allInFlight,
			About: "the AMQP connections are reset, and new ones refused",
			Run: held(troubled(
				func(p *services.Proxy) { p.Refuse(); p.Cut() },
				(*services.Proxy).Accept,
			)),
		},
		{
			Name: "rabbitmq-black-hole", Duplicates: allInFlight,
			About: "data in both directions is lost; in long holds also heartbeats",
			Run:   held(blackHole()),
		},
		{
			Name: "rabbitmq-black-hole-upstream", Duplicates: allInFlight,
			About: "data from the relays to the broker is lost",
			Run:   held(blackHole(services.Upstream)),
		},
		{
			Name: "rabbitmq-black-hole-downstream", Duplicates: allInFlight,
			About: "data from the broker to the relays is lost: messages arrive, their confirms do not",
			Run:   held(blackHole(services.Downstream)),
		},
	}
}

// troubled applies begin and end to the proxies of one relay or all.
func troubled(begin, end func(*services.Proxy)) beginning {
	return func(_ context.Context, w *World, random *rand.Rand) (string, func(context.Context) error, error) {
		detail, proxies := w.somebody(random)
		for _, proxy := range proxies {
			begin(proxy)
		}
		return detail, func(context.Context) error {
			for _, proxy := range proxies {
				end(proxy)
			}
			return nil
		}, nil
	}
}

// somebody chooses all relays or one of them, and returns their proxies to the broker.
func (w *World) somebody(random *rand.Rand) (who string, proxies []*services.Proxy) {
	if n := random.IntN(2 * len(w.Relays)); n < len(w.Relays) && len(w.Relays) > 1 {
		return w.Relays[n].Name, w.Relays[n].RabbitMQ
	}
	return "all relays", w.RabbitMQProxies()
}
