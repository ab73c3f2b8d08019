package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// judgeAlternates: an exchange with an alternate exchange returns no message as unroutable.
func (j *brokerJudge) judgeAlternates(c chart) {
	for _, name := range j.o.exchangesOf(j.f.asked) {
		x, there := j.f.management.exchanges[name]
		if alternate := j.f.management.alternate(x); there && alternate != "" {
			c.about(name).warn("alternate_exchange", j.alternateFix(x), "exchange %q has the alternate exchange %q: "+
				"a message without a queue counts as published if that one takes it", name, alternate)
		}
	}
}

// alternateFix removes it. An argument can only be removed with the exchange.
func (j *brokerJudge) alternateFix(x exchangeFacts) steps {
	by := j.f.management.policy(x.Name, false, "exchanges")
	remove := remark("# it is an argument of the exchange: delete that, and declare it without")
	switch {
	case x.Arguments["alternate-exchange"] != nil:
	case len(by.Definition) == 1:
		remove = command("rabbitmqctl clear_policy -p %s %s%s",
			shell(j.f.vhost), problem.Dashed(by.Name), shell(by.Name))
	default:
		by.Definition = maps.Clone(by.Definition)
		delete(by.Definition, "alternate-exchange")
		remove = j.setPolicy(by)
	}
	return lines(remove, remark("# or make sure that somebody consumes what arrives there"))
}

func (j *brokerJudge) setPolicy(p policy) steps {
	text, _ := json.Marshal(p.Definition) // decoded from JSON before
	return command("rabbitmqctl set_policy -p %s --priority %d --apply-to %s %s%s %s %s",
		shell(j.f.vhost), p.Priority, shell(p.ApplyTo), problem.Dashed(p.Name, p.Pattern), shell(p.Name),
		shell(p.Pattern), shell(string(text)))
}

// judgeQueues looks at what the queues do with messages that RabbitMQ has confirmed. A stream keeps what it has for a
// time that its owner chose: it is a log.
func (j *brokerJudge) judgeQueues(c chart) {
	for _, name := range sortedKeys(j.f.management.queues) {
		if q := j.f.management.queues[name]; q.Type != "stream" {
			s := j.f.management.rules(q)
			j.judgeOverflow(c.about(q.Name), q, s)
			j.judgeTTL(c.about(q.Name), q, s)
			j.judgeDeliveries(c.about(q.Name), q, s)
		}
	}
}

// judgeOverflow: a queue with a limit drops its oldest messages, rejects new ones, or moves the oldest to an exchange.
func (j *brokerJudge) judgeOverflow(c chart, q queueFacts, s queueRules) {
	limit, name := s.limit("max-length", "max-length-bytes")
	overflow, set := s.text("overflow")
	lost, to := j.deadLetters(s)
	switch {
	case limit == "":
	case overflow == "reject-publish-dlx" && lost == "":
		fix := j.queueFix(q, s.own, name, "overflow", "reject-publish")
		if s.arguments["x-overflow"] != nil { // it overrides a policy
			fix = remark("# declare the queue again, with x-overflow reject-publish")
		}
		c.warn("overflow", fix, "queue %q is limited (%s) and rejects messages when it is full: each try leaves "+
			"another copy of the message in exchange %q", q.Name, limit, to)
	case set && overflow != "drop-head" && s.full(q):
		_, fix := problem.OfReason(outbox.ReasonNack, nil, "")
		c.wrong("overflow", remark("# %s", fix), "queue %q is full (%s) and rejects messages: "+
			"they are retried, then dead-lettered", q.Name, limit)
	case set && overflow != "drop-head", lost == "":
		c.ok("overflow", "queue %q is limited (%s) and loses nothing when it is full", q.Name, limit)
	default:
		c.warn("overflow", j.queueFix(q, s.own, name, "overflow", "reject-publish"), "queue %q is limited (%s) and "+
			"drops its oldest messages when it is full: they were confirmed, and are lost%s", q.Name, limit, lost)
	}
}

// judgeTTL: a queue that expires messages loses them, unless it moves them to an exchange.
func (j *brokerJudge) judgeTTL(c chart, q queueFacts, s queueRules) {
	if ttl, name := s.limit("message-ttl"); ttl != "" {
		j.judgeDropped(c, q, s, "message_ttl", name, "that nobody consumes in time ("+ttl+" ms)")
	}
}

// judgeDeliveries: a quorum queue drops a message that its consumers have returned or lost too often.
func (j *brokerJudge) judgeDeliveries(c chart, q queueFacts, s queueRules) {
	limit, name := s.limit("delivery-limit")
	major, _, _ := strings.Cut(j.f.version, ".")
	if n, _ := strconv.Atoi(major); limit == "" && n >= 4 {
		limit = "delivery-limit 20, the default of RabbitMQ 4"
	}
	if q.Type == "quorum" && limit != "" && limit != "delivery-limit -1" {
		j.judgeDropped(c, q, s, "delivery_limit", name, "that were delivered too often ("+limit+")")
	}
}

// judgeDropped: what a queue drops by this limit goes to its dead-letter exchange, or is lost.
func (j *brokerJudge) judgeDropped(c chart, q queueFacts, s queueRules, finding, limit, which string) {
	lost, exchange := j.deadLetters(s)
	if lost == "" {
		return
	}
	fix := j.queueFix(q, s.own, limit, "dead-letter-exchange", "EXCHANGE")
	if s.arguments["x-dead-letter-exchange"] != nil {
		fix = j.curl("PUT", "exchanges", exchange, `{"type": "fanout", "durable": true}`).noted("and bind a queue")
	}
	c.warn(finding, lines(fix, remark("# or make sure that losing these messages is right")),
		"queue %q drops messages %s: they were confirmed, and are lost%s", q.Name, which, lost)
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

// queueFix adds a setting to the policy that has the limit, whose other settings stay. Without one, the queue gets its
// own policy.
func (j *brokerJudge) queueFix(q queueFacts, own policy, limit, setting, value string) steps {
	p := own
	p.Definition = map[string]any{}
	maps.Copy(p.Definition, own.Definition)
	p.Definition[setting] = value
	if own.Definition[limit] == nil {
		p.Name, p.Pattern, p.ApplyTo = setting+"-"+q.Name, "^"+regexp.QuoteMeta(q.Name)+"$", "queues"
		if own.Definition != nil {
			p.Priority++
		}
	}
	return j.setPolicy(p)
}

// alternate is the alternate exchange. An argument overrides a policy.
func (f managementFacts) alternate(x exchangeFacts) string {
	if name, ok := x.Arguments["alternate-exchange"].(string); ok {
		return name
	}
	name, _ := f.policy(x.Name, false, "exchanges").Definition["alternate-exchange"].(string)
	return name
}

// policy returns the policy with the highest priority for a name, among these kinds, or one without a definition.
func (f managementFacts) policy(name string, operator bool, kinds ...string) (best policy) {
	for _, p := range f.policies {
		if p.operator != operator || p.ApplyTo != "all" && !slices.Contains(kinds, p.ApplyTo) {
			continue
		}
		pattern, err := regexp.Compile(p.Pattern)
		if err != nil || !pattern.MatchString(name) {
			continue // Perl's expressions can say more than Go's
		}
		if best.Definition == nil || p.Priority > best.Priority {
			best = p
		}
	}
	return best
}

// queueRules are the arguments of a queue and its policies.
type queueRules struct {
	arguments      map[string]any
	own, operators policy
}

func (f managementFacts) rules(q queueFacts) queueRules {
	kinds := []string{"queues", q.Type + "_queues"}
	return queueRules{q.Arguments, f.policy(q.Name, false, kinds...), f.policy(q.Name, true, kinds...)}
}

// text returns a setting that is no number. An argument overrides a policy.
func (s queueRules) text(name string) (text string, set bool) {
	text, set = first(s.arguments["x-"+name], s.own.Definition[name], s.operators.Definition[name]).(string)
	return text, set
}

// limit returns a number with its name, or "". If there are several numbers, RabbitMQ uses the lowest; limit returns
// the operator policy's, or else the argument's, or else the policy's.
func (s queueRules) limit(names ...string) (limit, name string) {
	for _, name := range names {
		n := first(s.operators.Definition[name], s.arguments["x-"+name], s.own.Definition[name])
		if f, ok := n.(float64); ok {
			return name + " " + strconv.FormatFloat(f, 'f', -1, 64), name // as people write it
		}
	}
	return "", ""
}

// full reports whether a queue is at a limit.
func (s queueRules) full(q queueFacts) bool {
	for name, is := range map[string]float64{"max-length": q.Ready, "max-length-bytes": q.ReadyBytes} {
		for _, limit := range []any{s.operators.Definition[name], s.arguments["x-"+name], s.own.Definition[name]} {
			if most, ok := limit.(float64); ok && is > 0 && is >= most {
				return true
			}
		}
	}
	return false
}

func first(values ...any) any {
	at := slices.IndexFunc(values, func(v any) bool { return v != nil })
	if at < 0 {
		return nil
	}
	return values[at]
}
