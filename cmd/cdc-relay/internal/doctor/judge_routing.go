package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// mostUnroutable is how many are reported one by one.
const mostUnroutable = 20

// judgeRouting checks that a queue takes the waiting messages.
func (j *brokerJudge) judgeRouting() []Finding {
	c := &chart{area: Routing}
	j.judgeWaiting(c)
	if j.f.broken == nil {
		j.judgeRoutes(c)
	}
	if j.f.management.err == nil {
		j.judgeAlternates(c)
		j.judgeQueues(c)
	}
	return c.findings
}

// judgeWaiting says which rows were examined.
func (j *brokerJudge) judgeWaiting(c *chart) {
	s := j.database.sample
	_, there := j.database.tables.value.Tables[j.o.Table.Name]
	more := ""
	if j.f.left > 0 {
		more = fmt.Sprintf("; %d of them were checked", len(j.f.asked))
	}
	kinds := len(j.f.asked) + j.f.left
	switch {
	case j.database.unreachable != nil || !there:
		c.warn("waiting", remark("-- see the findings above"),
			"the waiting rows cannot be read: only --exchange was checked")
	case s.err != nil:
		c.unknown("waiting", s.err)
	case s.value.whole:
		c.ok("waiting", "%s, for %s of exchange and routing key%s",
			counted(s.value.rows, "row waits", "rows wait"), counted(kinds, "pair", "pairs"), more)
	case s.value.missed != nil:
		c.warn("waiting", fixOf(s.value.missed),
			"of %d rows, for %d pairs of exchange and routing key%s; others could not be read: %s",
			s.value.rows, kinds, more, s.value.missed)
	default:
		c.ok("waiting", "of the first %d rows (the oldest, the newest, retries, and some between), "+
			"for %d pairs of exchange and routing key%s", s.value.rows, kinds, more)
	}
}

// judgeRoutes uses AMQP for the default exchange and the bindings for others. It also counts earlier rejections by the
// broker.
func (j *brokerJudge) judgeRoutes(c *chart) {
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
			continue
		}
		if told++; told <= mostUnroutable {
			c.wrong("route", fix, "%s", says).about(d.exchange + "/" + d.routingKey)
		}
	}
	if told > mostUnroutable {
		c.wrong("route", remark("-- fix those above, and run check again"),
			"%s no queue", counted(told-mostUnroutable, "more routing key reaches", "more routing keys reach"))
	}
	if len(unknown) > 0 {
		err := j.f.queues[unknown[0]]
		c.warn("route", lookUpFix(err), "%s; %d more are unknown",
			j.unknown(fmt.Sprintf("queue %q", unknown[0]), err), len(unknown)-1)
	}
	if good > 0 && told == 0 {
		how := "reaches a queue"
		if j.f.management.err != nil && j.needsManagement() || j.f.management.unasked || j.o.NoProbe {
			how = "was rejected for a missing queue, in the rows examined"
			c.ok("route", "none of %s %s", counted(good, "routing key", "routing keys"), how)
			return
		}
		c.ok("route", "each of %s %s", counted(good, "routing key", "routing keys"), how)
	}
}

// unroutable says why no queue takes a message; "": one does, or it is unknown.
func (j *brokerJudge) unroutable(d destination) (fix fix, says string) {
	rows := ""
	if n := j.rejectedAsUnroutable(d); n > 0 {
		rows = fmt.Sprintf("; %s rejected for that before", counted(n, "row examined was", "rows examined were"))
	}
	switch {
	case d.exchange == "" && isDown(j.f.queues[d.routingKey]):
		return startNodes(), fmt.Sprintf("queue %q exists, and takes no messages: %s. The relay tries again, "+
			"and counts no attempt", d.routingKey, reasonOf(j.f.queues[d.routingKey]))
	case d.exchange == "" && j.f.queues[d.routingKey] != nil:
		fix = j.curl("PUT", "queues", d.routingKey, `{"durable": true}`).noted("as its consumers declare it")
		return fix, fmt.Sprintf("queue %q, which the default exchange would deliver to, does not exist%s",
			d.routingKey, rows)
	case d.exchange != "" && !j.o.NoProbe && j.f.management.err == nil:
		r := j.f.management.route(d.exchange, d.routingKey)
		switch {
		case len(r.queues) > 0 || r.perhaps:
		case len(j.f.management.down) > 0 && !r.unasked:
			return startNodes(), fmt.Sprintf("exchange %q has no queue for routing key %q that is up%s; "+
				"queue %q is down, and RabbitMQ hides its bindings",
				d.exchange, d.routingKey, rows, j.f.management.down[0])
		case !r.unasked:
			says = fmt.Sprintf("exchange %q has no queue for routing key %q%s", d.exchange, d.routingKey, rows)
			return j.bindFix(d), says
		case rows != "":
			return j.rejectedBefore(d, rows)
		}
	case d.exchange != "" && rows != "":
		return j.rejectedBefore(d, rows)
	}
	return nil, ""
}

func startNodes() fix {
	return command("rabbitmqctl cluster_status  # start the nodes that do not run")
}

// rejectedBefore is for unknown bindings, if rows were rejected before.
func (j *brokerJudge) rejectedBefore(d destination, rows string) (fix fix, says string) {
	return j.bindFix(d), fmt.Sprintf("exchange %q had no queue for routing key %q%s", d.exchange, d.routingKey, rows)
}

func (j *brokerJudge) bindFix(d destination) fix {
	body, _ := json.Marshal(map[string]string{"routing_key": d.routingKey}) // two strings always encode
	return j.curl("POST", "bindings", "e\x00"+d.exchange+"\x00q\x00QUEUE", string(body))
}

// rejectedAsUnroutable counts the rows whose last rejection was "unroutable".
func (j *brokerJudge) rejectedAsUnroutable(d destination) int {
	n := 0
	for of, codes := range j.database.sample.value.rejected {
		if of.resolved(j.o) == d {
			n += codes[string(outbox.ReasonUnroutable)]
		}
	}
	return n
}

// judgeAlternates: an exchange with an alternate exchange returns no message as unroutable.
func (j *brokerJudge) judgeAlternates(c *chart) {
	for _, name := range j.o.exchangesOf(j.f.asked) {
		x, there := j.f.management.exchanges[name]
		if alternate := j.f.management.alternate(x); there && alternate != "" {
			c.warn("alternate_exchange", j.alternateFix(x),
				"exchange %q has the alternate exchange %q: "+
					"a message without a queue counts as published if that one takes it", name, alternate).about(name)
		}
	}
}

// alternateFix removes it. An argument can only be removed with the exchange.
func (j *brokerJudge) alternateFix(x exchangeFacts) fix {
	keep := remark("# or make sure that somebody consumes what arrives there")
	by, _ := j.f.management.policy(x.Name, false, "exchanges")
	switch {
	case x.Arguments["alternate-exchange"] != nil:
		return lines(remark("# it is an argument of the exchange: delete that, and declare it without"), keep)
	case len(by.Definition) == 1:
		return lines(
			command("rabbitmqctl clear_policy -p %s %s%s", shell(j.f.vhost), problem.Dashed(by.Name), shell(by.Name)),
			keep)
	}
	definition := maps.Clone(by.Definition)
	delete(definition, "alternate-exchange")
	return lines(j.policyCommand(by.Name, by.Pattern, by.ApplyTo, by.Priority, definition), keep)
}

func (j *brokerJudge) policyCommand(name, pattern, applyTo string, priority int, definition map[string]any) fix {
	text, _ := json.Marshal(definition) // decoded from JSON before
	return command("rabbitmqctl set_policy -p %s --priority %d --apply-to %s %s%s %s %s",
		shell(j.f.vhost), priority, shell(applyTo), problem.Dashed(name, pattern), shell(name), shell(pattern),
		shell(string(text)))
}

// judgeQueues looks at what the queues do with messages that RabbitMQ has confirmed. A stream keeps what it has for a
// time that its owner chose: it is a log.
func (j *brokerJudge) judgeQueues(c *chart) {
	for _, name := range sortedKeys(j.f.management.queues) {
		if q := j.f.management.queues[name]; q.Type != "stream" {
			s := j.f.management.rules(q)
			j.judgeOverflow(c, q, s)
			j.judgeTTL(c, q, s)
		}
	}
}

// judgeOverflow: a queue with a limit drops its oldest messages, rejects new ones, or moves the oldest to an exchange.
func (j *brokerJudge) judgeOverflow(c *chart, q queueFacts, s queueRules) {
	limit, name := s.limit("max-length", "max-length-bytes")
	if limit == "" {
		return
	}
	overflow, set := s.text("overflow")
	lost, to := j.deadLetters(s)
	switch {
	case set && overflow != "drop-head":
		c.ok("overflow", "queue %q is limited (%s) and rejects messages when it is full: "+
			"they are retried, then dead-lettered", q.Name, limit).about(q.Name)
	case lost == "":
		c.ok("overflow", "queue %q is limited (%s) and moves its oldest messages to exchange %q when it is full",
			q.Name, limit, to).about(q.Name)
	default:
		c.warn("overflow", j.queueFix(q, s.writes(name), "overflow", "reject-publish"),
			"queue %q is limited (%s) and drops its oldest messages when it is full: "+
				"they were confirmed, and are lost%s", q.Name, limit, lost).about(q.Name)
	}
}

// judgeTTL: a queue that expires messages loses them, unless it moves them to an exchange.
func (j *brokerJudge) judgeTTL(c *chart, q queueFacts, s queueRules) {
	ttl, name := s.limit("message-ttl")
	lost, _ := j.deadLetters(s)
	if ttl == "" || lost == "" {
		return
	}
	keep := remark("# or make sure that losing messages after this time is right")
	fix := lines(j.queueFix(q, s.writes(name), "dead-letter-exchange", "EXCHANGE"), keep)
	if s.arguments["x-dead-letter-exchange"] != nil {
		exchange, _ := s.text("dead-letter-exchange")
		create := j.curl("PUT", "exchanges", exchange, `{"type": "fanout", "durable": true}`)
		fix = lines(create.noted("and bind a queue"), keep)
	}
	c.warn("message_ttl", fix, "queue %q drops messages that nobody consumes in time (%s ms): "+
		"they were confirmed, and are lost%s", q.Name, ttl, lost).about(q.Name)
}

// deadLetters returns the exchange that receives what a queue drops. Lost says why there is none, after a sentence.
func (j *brokerJudge) deadLetters(s queueRules) (lost, exchange string) {
	exchange, set := s.text("dead-letter-exchange")
	if !set {
		return "; the queue has no dead-letter exchange", ""
	}
	if _, there := j.f.management.exchanges[exchange]; !there {
		return fmt.Sprintf("; its dead-letter exchange is %q, which does not exist", exchange), exchange
	}
	return "", exchange
}

// queueFix adds a setting to the policy, whose other settings stay. Without one, the queue gets its own policy.
func (j *brokerJudge) queueFix(q queueFacts, by policy, setting, value string) fix {
	definition := map[string]any{setting: value}
	name, pattern, applyTo, priority := setting+"-"+q.Name, "^"+regexp.QuoteMeta(q.Name)+"$", "queues", 0
	if by.Name != "" {
		maps.Copy(definition, by.Definition)
		definition[setting] = value
		name, pattern, applyTo, priority = by.Name, by.Pattern, by.ApplyTo, by.Priority
	} else if other, found := j.f.management.policy(q.Name, false, "queues", q.Type+"_queues"); found {
		maps.Copy(definition, other.Definition)
		definition[setting], priority = value, other.Priority+1
	}
	return j.policyCommand(name, pattern, applyTo, priority, definition)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := slices.Collect(maps.Keys(m))
	slices.Sort(keys)
	return keys
}
