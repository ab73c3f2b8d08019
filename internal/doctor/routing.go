package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// route is what would become of a message.
type route struct {
	queues []string // the queues that take it
	// perhaps: an exchange on the way decides by more than the routing key, and has bindings.
	perhaps bool
	// unasked: the bindings of an exchange on the way are not known.
	unasked bool
	// alternate is the exchange that takes it because no binding does, or "".
	alternate string
}

// follow walks from an exchange as the broker does.
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

// topicMatches: * is one word, # any number of them.
func topicMatches(pattern, words []string) bool {
	// reached[i]: the pattern so far can have taken i words.
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

// alternate is the exchange that takes what no binding of this one does. A policy goes behind the argument.
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

// policy is the one of these kinds that counts for a name: that of the greatest priority.
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

// limit is what makes a queue discard its oldest messages, or "". Argument goes
// before policy; of a number that an operator's policy has too, the lower counts.
func (f managementFacts) limit(q queueFacts) (limit string, by policy) {
	kinds := []string{"queues", q.Type + "_queues"}
	own, _ := f.policy(q.Name, false, kinds...)
	operators, _ := f.policy(q.Name, true, kinds...)
	overflow := first(q.Arguments["x-overflow"], own.Definition["overflow"], operators.Definition["overflow"])
	if overflow != nil && overflow != "drop-head" || q.Type == "stream" {
		return "", policy{}
	}
	for _, name := range []string{"max-length", "max-length-bytes"} {
		if n := first(operators.Definition[name], q.Arguments["x-"+name], own.Definition[name]); n != nil {
			by = own
			if own.Definition[name] == nil {
				by = policy{}
			}
			return name + " " + whole(n), by
		}
	}
	return "", policy{}
}

// whole writes a number of JSON as people do.
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
