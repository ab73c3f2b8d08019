package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// mostUnroutable is how many are told of one by one.
const mostUnroutable = 20

// judgeRouting: whether a queue takes what waits.
func (j *brokerJudge) judgeRouting() []Finding {
	c := &chart{area: Routing}
	j.judgeWaiting(c)
	if j.f.broken == nil {
		j.judgeRoutes(c)
	}
	if j.f.management.err == nil {
		j.judgeAlternates(c)
		j.judgeOverflow(c)
	}
	return c.findings
}

// judgeWaiting says what was looked at.
func (j *brokerJudge) judgeWaiting(c *chart) {
	s := j.database.sample
	_, there := j.database.tables.value.Tables[j.o.Table.Name]
	more := ""
	if j.f.left > 0 {
		more = fmt.Sprintf("; %d of them were looked after", len(j.f.asked))
	}
	kinds := len(j.f.asked) + j.f.left
	switch {
	case j.database.unreachable != nil || !there:
		c.warn("waiting", "-- see the findings above", "the rows that wait cannot be looked at: only --exchange was checked")
	case s.err != nil:
		c.unknown("waiting", s.err)
	case s.value.whole:
		c.ok("waiting", "%s, for %s of exchange and routing key%s", counted(s.value.rows, "row waits", "rows wait"), counted(kinds, "pair", "pairs"), more)
	case s.value.missed != nil:
		c.warn("waiting", fixOf(s.value.missed), "of %d rows, for %d pairs of exchange and routing key%s; others could not be looked at: %s", s.value.rows, kinds, more, s.value.missed)
	default:
		c.ok("waiting", "of the first %d rows (the oldest, the newest, retries, and some between), for %d pairs of exchange and routing key%s", s.value.rows, kinds, more)
	}
}

// judgeRoutes: by AMQP for the default exchange, by the bindings for others, and by
// what the broker has answered before.
func (j *brokerJudge) judgeRoutes(c *chart) {
	good, told := 0, 0
	for _, d := range j.f.asked {
		if d.exchange != "" && j.f.exchanges[d.exchange] != nil {
			continue // told of already
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
		c.wrong("route", "-- fix those above, and look again", "%s no queue", counted(told-mostUnroutable, "more routing key reaches", "more routing keys reach"))
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

// unroutable says why no queue takes a message, or "".
func (j *brokerJudge) unroutable(d destination) (fix, says string) {
	rows := ""
	if n := j.refusals(d); n > 0 {
		rows = fmt.Sprintf("; %s rejected for that already", counted(n, "row looked at was", "rows looked at were"))
	}
	switch {
	case d.exchange == "" && j.f.queues[d.routingKey] != nil && !isNotFound(j.f.queues[d.routingKey]):
		return "# see the broker's log", fmt.Sprintf("queue %q: %s", d.routingKey, reasonOf(j.f.queues[d.routingKey]))
	case d.exchange == "" && j.f.queues[d.routingKey] != nil:
		fix = j.curl("PUT", "queues", d.routingKey, `{"durable": true}`) + "  # as its consumers declare it"
		return fix, fmt.Sprintf("there is no queue %q for the default exchange to bring messages to%s", d.routingKey, rows)
	case d.exchange != "" && !j.o.NoProbe && j.f.management.err == nil:
		r := j.f.management.route(d.exchange, d.routingKey)
		switch {
		case len(r.queues) > 0 || r.perhaps:
		case !r.unasked:
			return j.bindFix(d), fmt.Sprintf("exchange %q has no queue for routing key %q%s", d.exchange, d.routingKey, rows)
		case rows != "":
			return j.refusedBefore(d, rows)
		}
	case d.exchange != "" && rows != "":
		return j.refusedBefore(d, rows)
	}
	return "", ""
}

// refusedBefore: bindings are not known, but rows were rejected.
func (j *brokerJudge) refusedBefore(d destination, rows string) (fix, says string) {
	return j.bindFix(d), fmt.Sprintf("exchange %q had no queue for routing key %q%s", d.exchange, d.routingKey, rows)
}

func (j *brokerJudge) bindFix(d destination) string {
	body, _ := json.Marshal(map[string]string{"routing_key": d.routingKey}) // two strings: it cannot fail
	return j.curl("POST", "bindings", "e\x00"+d.exchange+"\x00q\x00QUEUE", string(body))
}

// refusals are the rows whose newest rejection was that no queue took them.
func (j *brokerJudge) refusals(d destination) int {
	n := 0
	for of, codes := range j.database.sample.value.refused {
		if of.resolved(j.o) == d {
			n += codes[string(outbox.ReasonUnroutable)]
		}
	}
	return n
}

// judgeAlternates: where an exchange has one, no message comes back as unroutable.
func (j *brokerJudge) judgeAlternates(c *chart) {
	for _, name := range j.o.exchangesOf(j.f.asked) {
		x, there := j.f.management.exchanges[name]
		if alternate := j.f.management.alternate(x); there && alternate != "" {
			c.warn("alternate_exchange", j.alternateFix(x),
				"exchange %q has the alternate exchange %q: a message without a queue counts as published if that one takes it", name, alternate).about(name)
		}
	}
}

// alternateFix removes it; an argument stays as long as the exchange.
func (j *brokerJudge) alternateFix(x exchangeFacts) string {
	const keep = "# or see that somebody reads what comes there"
	by, _ := j.f.management.policy(x.Name, false, "exchanges")
	switch {
	case x.Arguments["alternate-exchange"] != nil:
		return "# it is an argument of the exchange: delete that, and declare it without\n" + keep
	case len(by.Definition) == 1:
		return fmt.Sprintf("rabbitmqctl clear_policy -p %s %s\n%s", shell(j.f.vhost), shell(by.Name), keep)
	}
	definition := maps.Clone(by.Definition)
	delete(definition, "alternate-exchange")
	return j.policyCommand(by.Name, by.Pattern, by.ApplyTo, by.Priority, definition) + "\n" + keep
}

func (j *brokerJudge) policyCommand(name, pattern, applyTo string, priority int, definition map[string]any) string {
	text, _ := json.Marshal(definition) // it came from JSON
	return fmt.Sprintf("rabbitmqctl set_policy -p %s --priority %d --apply-to %s %s %s %s", shell(j.f.vhost), priority, applyTo, shell(name), shell(pattern), shell(string(text)))
}

// judgeOverflow: a queue that discards its oldest messages confirms the newer ones.
func (j *brokerJudge) judgeOverflow(c *chart) {
	for _, name := range sortedKeys(j.f.management.queues) {
		q := j.f.management.queues[name]
		limit, by := j.f.management.limit(q)
		if limit == "" {
			continue
		}
		c.warn("overflow", j.overflowFix(q, by), "queue %q is limited (%s) and drops its oldest messages when it is full: they were confirmed, and are lost", name, limit).about(name)
	}
}

// overflowFix keeps what the policy says beside; a queue whose limit is an argument gets a policy of its own.
func (j *brokerJudge) overflowFix(q queueFacts, by policy) string {
	definition := map[string]any{"overflow": "reject-publish"}
	name, pattern, applyTo, priority := "reject-publish-"+q.Name, "^"+regexp.QuoteMeta(q.Name)+"$", "queues", 0
	if by.Name != "" {
		maps.Copy(definition, by.Definition)
		definition["overflow"] = "reject-publish"
		name, pattern, applyTo, priority = by.Name, by.Pattern, by.ApplyTo, by.Priority
	} else if other, found := j.f.management.policy(q.Name, false, "queues", q.Type+"_queues"); found {
		maps.Copy(definition, other.Definition)
		definition["overflow"], priority = "reject-publish", other.Priority+1
	}
	return j.policyCommand(name, pattern, applyTo, priority, definition)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := slices.Collect(maps.Keys(m))
	slices.Sort(keys)
	return keys
}
