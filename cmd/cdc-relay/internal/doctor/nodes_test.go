package doctor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/test/services"
)

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
		if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
			t.Fatal(err)
		}
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
