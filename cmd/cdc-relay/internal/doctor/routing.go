package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// route is where a message would go.
type route struct {
	queues []string // the queues that receive it
	// perhaps: an exchange on the route has bindings and uses more than the routing key.
	perhaps bool
	// unasked: the bindings of an exchange on the route are unknown.
	unasked bool
	// alternate is the exchange that receives it because no binding matches; "": none.
	alternate string
}

// route follows the bindings as the broker does.
func (f managementFacts) route(exchange, key string) route {
	var r route
	f.walk(exchange, key, &r, map[string]bool{})
	slices.Sort(r.queues)
	r.queues = slices.Compact(r.queues)
	return r
}

func (f managementFacts) walk(exchange, key string, r *route, seen map[string]bool) {
	if seen[exchange] {
		return
	}
	seen[exchange] = true
	if exchange == "" {
		if _, there := f.queues[key]; there {
			r.queues = append(r.queues, key)
		}
		return
	}
	x, there := f.exchanges[exchange]
	bindings, asked := f.bindings[exchange]
	if there && !asked {
		r.unasked = true
		return
	}
	matched := false
	for _, b := range bindings {
		switch matches(x, b, key) {
		case no:
			continue
		case unknown:
			r.perhaps = true
		}
		matched = true
		if b.DestinationType == "exchange" {
			f.walk(b.Destination, key, r, seen)
		} else {
			r.queues = append(r.queues, b.Destination)
		}
	}
	if alternate := f.alternate(x); !matched && alternate != "" {
		r.alternate = alternate
		f.walk(alternate, key, r, seen)
	}
}

type match int

const (
	no match = iota
	yes
	unknown // headers, or a plugin's exchange
)

func matches(x exchangeFacts, b binding, key string) match {
	is := no
	switch x.Type {
	case "direct":
		if b.RoutingKey == key {
			is = yes
		}
	case "fanout":
		is = yes
	case "topic":
		if topicMatches(strings.Split(b.RoutingKey, "."), strings.Split(key, ".")) {
			is = yes
		}
	default:
		is = unknown
	}
	return is
}

// topicMatches: * is one word, # any number of words.
func topicMatches(pattern, words []string) bool {
	// reached[i]: the pattern so far can match the first i words.
	reached := make([]bool, len(words)+1)
	reached[0] = true
	for _, p := range pattern {
		next := make([]bool, len(words)+1)
		for i := range reached {
			switch {
			case p == "#":
				next[i] = reached[i] || i > 0 && next[i-1]
			case i > 0:
				next[i] = reached[i-1] && (p == "*" || p == words[i-1])
			}
		}
		reached = next
	}
	return reached[len(words)]
}

// alternate is the alternate exchange. An argument overrides a policy.
func (f managementFacts) alternate(x exchangeFacts) string {
	if name, ok := x.Arguments["alternate-exchange"].(string); ok {
		return name
	}
	if p, found := f.policy(x.Name, false, "exchanges"); found {
		name, _ := p.Definition["alternate-exchange"].(string)
		return name
	}
	return ""
}

// policy returns the policy with the highest priority for a name, among these kinds.
func (f managementFacts) policy(name string, operator bool, kinds ...string) (policy, bool) {
	var best policy
	found := false
	for _, p := range f.policies {
		if p.operator != operator || p.ApplyTo != "all" && !slices.Contains(kinds, p.ApplyTo) {
			continue
		}
		pattern, err := regexp.Compile(p.Pattern)
		if err != nil || !pattern.MatchString(name) {
			continue // Perl's expressions can say more than Go's
		}
		if !found || p.Priority > best.Priority {
			best, found = p, true
		}
	}
	return best, found
}

// queueRules are the arguments of a queue and its policies.
type queueRules struct {
	arguments      map[string]any
	own, operators policy
}

func (f managementFacts) rules(q queueFacts) queueRules {
	kinds := []string{"queues", q.Type + "_queues"}
	own, _ := f.policy(q.Name, false, kinds...)
	operators, _ := f.policy(q.Name, true, kinds...)
	return queueRules{q.Arguments, own, operators}
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
		if n := first(s.operators.Definition[name], s.arguments["x-"+name], s.own.Definition[name]); n != nil {
			return name + " " + whole(n), name
		}
	}
	return "", ""
}

// writes is the policy that has a setting, or one without a name.
func (s queueRules) writes(name string) policy {
	if s.own.Definition[name] == nil {
		return policy{}
	}
	return s.own
}

// whole writes a JSON number as people do.
func whole(n any) string {
	if f, ok := n.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(n)
}

func first(values ...any) any {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}
