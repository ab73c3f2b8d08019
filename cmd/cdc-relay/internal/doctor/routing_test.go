package doctor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// words generates random routing keys, and patterns with * and #.
type words struct{ *rand.Rand }

func (w words) key(more ...string) string {
	from := append([]string{"a", "b", "c"}, more...)
	parts := make([]string, 1+w.IntN(3))
	for i := range parts {
		parts[i] = from[w.IntN(len(from))]
	}
	return strings.Join(parts, ".")
}

// declareMaze binds queues and exchanges to one another at random.
func (w words) declareMaze(p *patient) {
	for _, x := range []string{"direct", "topic", "fanout"} {
		p.exchange(x, x, nil)
	}
	p.exchange("outer", "topic", nil)
	p.exchange("guarded", "direct", amqp.Table{"alternate-exchange": "topic"})
	for i := range 6 {
		p.queue(fmt.Sprintf("q%d", i), nil, "direct", w.key(), "topic", w.key("*", "#"))
	}
	must(p, p.channel().ExchangeBind("direct", w.key("*", "#"), "outer", false, nil))
	p.queue("q1", nil, "guarded", w.key())
}

// The routes computed from the bindings are compared with the broker's routing.
func TestRoutesAreComputedAsTheBrokerDoes(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	w := words{rand.New(rand.NewPCG(1, 2))}
	w.declareMaze(p)
	channel := p.channel()
	returned := channel.NotifyReturn(make(chan amqp.Return, 1000))
	must(t, channel.Confirm(false))
	for _, x := range []string{"direct", "topic", "fanout", "outer", "guarded"} {
		for range 30 {
			key := w.key()
			p.insert(x, key)
			c, err := channel.PublishWithDeferredConfirmWithContext(t.Context(), x, key, true, false, amqp.Publishing{})
			if err == nil {
				_, err = c.WaitContext(t.Context())
			}
			must(t, err)
		}
	}
	unroutable := map[string]bool{}
	for len(returned) > 0 { // a return comes before its confirm
		m := <-returned
		unroutable[m.Exchange+"/"+m.RoutingKey] = true
	}
	if len(unroutable) < 5 {
		t.Fatalf("only %d messages were returned", len(unroutable))
	}
	r := p.examine()
	for _, f := range r.findings {
		if f.Name == "route" && f.Subject != "" && !unroutable[f.Subject] {
			t.Errorf("%s reaches a queue", f.Subject)
		}
	}
	if n := r.unroutable(); n != len(unroutable) {
		t.Errorf("%d are unroutable, want %d", n, len(unroutable))
	}
}

// Beyond the limit, only keys that were rejected before are reported to have no queue.
func TestTheNumberOfExaminedExchangesIsLimited(t *testing.T) {
	t.Parallel()
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	const exchanges = 105
	name := func(i int) string { return fmt.Sprintf("x%03d", i) }
	for i := range exchanges {
		p.exchange(name(i), amqp.ExchangeDirect, nil)
		p.queue("all", nil, name(i), "k")
		p.insert(name(i), "k")
	}
	r := p.examine()
	r.wantOthersOK()
	r.want(doctor.OK, doctor.Routing, "route", "none of 105 routing keys was rejected")

	p.exec("UPDATE outbox SET routing_key = 'other'")
	if n := p.examine().unroutable(); n != 100 {
		t.Errorf("%d have no queue, want the 100 that were examined", n)
	}
	p.exec("UPDATE outbox SET attempts = 1, available_at = now() + interval '1 hour', last_error = 'unroutable: NO_ROUTE (312)'")
	if n := p.examine().unroutable(); n != exchanges {
		t.Errorf("%d have no queue, want all %d", n, exchanges)
	}
}

// unroutable counts the routing keys that are reported to reach no queue.
func (r report) unroutable() int {
	n, more := 0, 0
	for _, f := range r.findings {
		switch {
		case f.Name != "route" || f.Level != doctor.Problem:
		case f.Subject == "":
			_, _ = fmt.Sscan(f.Message, &more)
		default:
			n++
		}
	}
	return n + more
}

// A node that is down is a warning while another one answers, and a problem if none does. The other checks run once, on
// the first node that answers.
func TestEachNodeOfABrokerIsExamined(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	p := healthy(t, services.SharedPostgres(t)).withBroker(broker)
	p.Exchange = "missing"
	port, err := services.FreePort()
	must(t, err)
	one, down, up := p.RabbitMQ.Value, fmt.Sprintf("127.0.0.1:%d", port), broker.Addr()
	at := func(nodes ...string) report {
		p.RabbitMQ.Value = strings.Replace(one, up, strings.Join(nodes, ","), 1)
		return p.examine()
	}

	r := at(down, up)
	if f := r.want(doctor.Warning, doctor.RabbitMQ, "reachable", down, "refused", "other nodes"); f.Subject != down {
		t.Errorf("the subject is %q, want %s", f.Subject, down)
	}
	r.want(doctor.OK, doctor.RabbitMQ, "login", "guest")
	r.want(doctor.Problem, doctor.RabbitMQ, "exchange", "missing")
	if n := strings.Count(r.String(), "rabbitmq exchange [missing]"); n != 1 {
		t.Errorf("the exchange is reported %d times:\n%s", n, r)
	}
	if !strings.Contains(r.String(), "ok rabbitmq reachable ["+up+"]") {
		t.Errorf("the node that answers has no line:\n%s", r)
	}

	at(up, up).want(doctor.OK, doctor.RabbitMQ, "reachable", "accepts user")

	p.RabbitMQ.Value = one + "," + strings.Replace(one, "guest:", "nobody:", 1)
	p.examine().want(doctor.Warning, doctor.RabbitMQ, "login", "nobody", "change_password", "other nodes")

	r = at(down, down)
	r.want(doctor.Problem, doctor.RabbitMQ, "reachable", down, "refused")
	if strings.Contains(r.String(), "other nodes") || strings.Contains(r.String(), "rabbitmq exchange") {
		t.Errorf("no node answers, and there are findings as if one did:\n%s", r)
	}
}

// A queue of a node that is down must not be declared again: its messages return with the node.
func TestAQueueThatIsDownIsNotDeclared(t *testing.T) {
	services.Thorough(t, "starts two brokers")
	t.Parallel()
	cluster := services.PrivateRabbitMQCluster(t, 2)
	up, down := cluster.Nodes[0], cluster.Nodes[1]
	p := healthy(t, services.SharedPostgres(t)).withBroker(up)
	channel, err := services.DialAMQP(t, strings.Replace(p.RabbitMQ.Value, up.Addr(), down.Addr(), 1)).Channel()
	must(t, err)
	for _, queue := range []string{"aa", "classic"} {
		_, err := channel.QueueDeclare(queue, true, false, false, false, nil)
		must(t, err)
	}
	must(t, channel.QueueBind("classic", "k", "amq.topic", false, nil))
	p.exec(`INSERT INTO outbox (exchange, routing_key, payload) VALUES ('', 'classic', '1'), ('amq.topic', 'k', '1'), ('', 'none', '1')`)
	must(t, down.Stop(t.Context()))
	said := p.examine().String()
	for _, words := range []string{
		`queue "classic" exists, and takes no messages`, "is down or inaccessible",
		`exchange "amq.topic" has no queue for routing key "k" that is up`, "rabbitmqctl cluster_status",
		`queue "none", which the default exchange would deliver to, does not exist`,
	} {
		if !strings.Contains(said, words) {
			t.Errorf("%q is missing", words)
		}
	}
	if strings.Count(said, "PUT") != 1 || strings.Contains(said, "POST") {
		t.Error("a queue that is down would be declared again")
	}
	if t.Failed() {
		t.Log(said)
	}
}
