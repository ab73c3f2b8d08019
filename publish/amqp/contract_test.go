package amqp

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

func TestThePublisherFulfilsTheContract(t *testing.T) {
	publishtest.Contract(t, func(t *testing.T) publishtest.Subject {
		url := services.VHost(t)
		a := newAdmin(t, url)
		exchange, queue := services.Name(t)+"_x", services.Name(t)+"_q"
		a.exchange(exchange, "direct", queue, "k")
		p, err := New(Config{URL: url})
		must(t, err)
		arrived := func() []publishtest.Seen {
			var all []publishtest.Seen
			for _, d := range a.drain(queue) {
				mark, _ := d.Headers[outbox.PossibleDuplicateHeader].(bool)
				all = append(all, publishtest.Seen{
					MessageID: d.MessageId, RoutingKey: d.RoutingKey, Body: string(d.Body),
					Duplicate: mark, Expiration: d.Expiration,
				})
			}
			return all
		}
		return publishtest.Subject{Publisher: p, Exchange: exchange, Key: "k", Nowhere: "nowhere", Arrived: arrived}
	})
}
