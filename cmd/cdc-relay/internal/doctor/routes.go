package doctor

import (
	"encoding/json"
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/topic"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// route is where a message would go.
type route struct {
	reaches bool // a queue receives it
	// perhaps: an exchange on the route has bindings and uses more than the routing key.
	perhaps bool
	// unasked: the bindings of an exchange on the route are unknown.
	unasked bool
}

// route follows the bindings as the broker does.
func (f managementFacts) route(exchange, key string) (r route) {
	f.walk(exchange, key, &r, map[string]bool{})
	return r
}

func (f managementFacts) walk(exchange, key string, r *route, seen map[string]bool) {
	if seen[exchange] {
		return
	}
	seen[exchange] = true
	x, there := f.exchanges[exchange]
	bindings, asked := f.bindings[exchange]
	if there && !asked {
		r.unasked = true
		return
	}
	matched := false
	for _, b := range bindings {
		switch x.Type {
		case "direct":
			if b.RoutingKey != key {
				continue
			}
		case "topic":
			if !topic.Matches(b.RoutingKey, key) {
				continue
			}
		case "fanout":
		default: // headers, or a plugin's exchange
			r.perhaps = true
		}
		matched = true
		if b.DestinationType == "exchange" {
			f.walk(b.Destination, key, r, seen)
		} else {
			r.reaches = true
		}
	}
	if alternate := f.alternate(x); !matched && alternate != "" {
		f.walk(alternate, key, r, seen)
	}
}

// mostUnroutable is how many are reported one by one: many often have one cause.
const mostUnroutable = 5

// judgeRouting checks that a queue takes the waiting messages.
func (j *brokerJudge) judgeRouting(c chart) {
	j.judgeWaiting(c)
	if j.f.broken == nil {
		j.judgeRoutes(c)
	}
	if j.f.management.err == nil {
		j.judgeAlternates(c)
		j.judgeQueues(c)
	}
}

// judgeWaiting says which rows were examined.
func (j *brokerJudge) judgeWaiting(c chart) {
	s, kinds := j.database.sample.value, len(j.f.asked)+j.f.left
	_, there := j.database.tables.value.Tables[j.o.Table.Name]
	more := ""
	if j.f.left > 0 {
		more = fmt.Sprintf("; %d of them were checked", len(j.f.asked))
	}
	what := fmt.Sprintf("%s and %s, for %s of exchange and routing key%s", counted(s.rows, "row", "rows"),
		counted(s.dead, "dead letter", "dead letters"), counted(kinds, "pair", "pairs"), more)
	switch {
	case j.database.unreachable != nil || !there: // reported already
	case c.unknown("waiting", j.database.sample.err):
	case s.missed != nil:
		c.warn("waiting", fixOf(s.missed), "examined are %s; others could not be read: %s", what, s.missed)
	case s.whole:
		c.ok("waiting", "examined are all: %s", what)
	default:
		c.ok("waiting", "examined are the oldest, the newest, retries, and some between: %s", what)
	}
}

// judgeRoutes uses AMQP for the default exchange and the bindings for others. It also counts earlier rejections by the
// broker.
func (j *brokerJudge) judgeRoutes(c chart) {
	good, told := 0, 0
	var unknown []string // queues
	for _, d := range j.f.asked {
		if d.exchange != "" && isNotFound(j.f.exchanges[d.exchange]) {
			continue // reported already
		}
		if err := j.f.queues[d.routingKey]; d.exchange == "" && err != nil && !isNotFound(err) {
			unknown = append(unknown, d.routingKey)
			continue
		}
		fix, says := j.unroutable(d)
		if says == "" {
			good++
		} else if told++; told <= mostUnroutable {
			c.about(d.exchange+"/"+d.routingKey).wrong("route", fix, "%s", says)
		}
	}
	j.judgeNacks(c)
	if told > mostUnroutable {
		c.wrong("route", remark("-- fix those above, and run check again"),
			"%s no queue", counted(told-mostUnroutable, "more routing key reaches", "more routing keys reach"))
	}
	if len(unknown) > 0 {
		err := j.f.queues[unknown[0]]
		c.warn("route", lookUpFix(err), "%s; %d more are unknown",
			j.unknown(fmt.Sprintf("queue %q", unknown[0]), err), len(unknown)-1)
	}
	keys := counted(good, "routing key", "routing keys")
	switch partly := j.f.management.err != nil && j.needsManagement() || j.f.management.unasked || j.o.NoProbe; {
	case good == 0 || told > 0:
	case partly:
		c.ok("route", "none of %s was rejected for a missing queue, in the rows examined", keys)
	default:
		c.ok("route", "each of %s reaches a queue", keys)
	}
}

// judgeNacks reports destinations whose messages a queue rejected. A nack does not say which queue it was.
func (j *brokerJudge) judgeNacks(c chart) {
	told := 0
	for _, d := range j.f.asked {
		if n := j.database.sample.value.nacked[d]; n > 0 && told < mostUnroutable {
			told++
			meaning, fix := problem.OfReason(outbox.ReasonNack, &d.exchange, "")
			c.about(d.exchange+"/"+d.routingKey).warn("nack", remark("# %s", fix),
				"%s, sent to %s with routing key %q: %s",
				counted(n, "message examined was rejected with a nack", "messages examined were rejected with a nack"),
				called(d.exchange), d.routingKey, meaning)
		}
	}
}

// unroutable says why no queue takes a message; "": one does, or it is unknown.
func (j *brokerJudge) unroutable(d destination) (fix steps, says string) {
	rejected, before := j.database.sample.value.unroutable[d], ""
	if rejected > 0 {
		before = "; " + counted(rejected, "row examined was", "rows examined were") + " rejected for that before"
	}
	if d.exchange == "" {
		switch err := j.f.queues[d.routingKey]; {
		case err == nil:
			return nil, ""
		case isDown(err):
			return startNodes(), fmt.Sprintf("queue %q exists, and takes no messages: %s. The relay tries again, "+
				"and counts no attempt", d.routingKey, reasonOf(err))
		}
		return j.curl("PUT", "queues", d.routingKey, `{"durable": true}`).noted("as its consumers declare it"),
			fmt.Sprintf("queue %q, which the default exchange would deliver to, does not exist%s", d.routingKey, before)
	}
	r := route{unasked: true}
	if !j.o.NoProbe && j.f.management.err == nil {
		r = j.f.management.route(d.exchange, d.routingKey)
	}
	body, _ := json.Marshal(map[string]string{"routing_key": d.routingKey}) // two strings always encode
	bind := j.curl("POST", "bindings", "e\x00"+d.exchange+"\x00q\x00QUEUE", string(body))
	switch {
	case r.reaches || r.perhaps:
		return nil, ""
	case r.unasked && rejected > 0:
		return bind, fmt.Sprintf("exchange %q had no queue for routing key %q%s", d.exchange, d.routingKey, before)
	case r.unasked:
		return nil, ""
	case len(j.f.management.down) > 0:
		return startNodes(), fmt.Sprintf("exchange %q has no queue for routing key %q that is up%s; "+
			"queue %q is down, and RabbitMQ hides its bindings",
			d.exchange, d.routingKey, before, j.f.management.down[0])
	}
	return bind, fmt.Sprintf("exchange %q has no queue for routing key %q%s", d.exchange, d.routingKey, before)
}

func startNodes() steps {
	return command("rabbitmqctl cluster_status  # start the nodes that do not run")
}
