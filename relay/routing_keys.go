package relay

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// otherKeys is the label of all routing keys that no pattern names.
const otherKeys = "other"

// mostLabels bounds the values of the label routing_key, otherKeys among them.
const mostLabels = 100

// routingKeys are those that have a value of their own in the metrics. It is safe for concurrent use.
type routingKeys struct {
	patterns []*regexp.Regexp
	mu       struct {
		sync.Mutex
		labels map[string]string // of the keys that a pattern names
	}
}

// newRoutingKeys is nil without patterns.
func newRoutingKeys(patterns []string) (*routingKeys, error) {
	if len(patterns) == 0 {
		return nil, nil //nolint:nilnil // no key has a value of its own
	}
	k := &routingKeys{}
	k.mu.labels = make(map[string]string)
	for _, pattern := range patterns {
		if pattern == "" || len(pattern) > 255 {
			return nil, fmt.Errorf("--metrics-routing-keys %q: want patterns of 1 to 255 bytes, separated by commas", pattern)
		}
		k.patterns = append(k.patterns, topicPattern(pattern))
	}
	return k, nil
}

// topicPattern matches as a binding of a topic exchange does: * is one word, # any number of words, none among them.
func topicPattern(pattern string) *regexp.Regexp {
	expression := regexp.QuoteMeta(pattern)
	for _, replaced := range [][2]string{{`\.#`, `(\..*)?`}, {`#\.`, `(.*\.)?`}, {`#`, `.*`}} {
		expression = strings.ReplaceAll(expression, replaced[0], replaced[1])
	}
	// What stands for # has stars of its own: those of the pattern are quoted.
	expression = strings.ReplaceAll(expression, `\*`, `[^.]*`)
	return regexp.MustCompile(`(?s)^` + expression + `$`)
}

// label is the value for a routing key: the key itself, if a pattern names it and the bound is not reached.
func (k *routingKeys) label(key string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if label, known := k.mu.labels[key]; known {
		return label
	}
	if len(k.mu.labels) >= mostLabels-1 || key == otherKeys {
		return otherKeys
	}
	for _, pattern := range k.patterns {
		if pattern.MatchString(key) {
			k.mu.labels[key] = strings.ToValidUTF8(key, "?")
			return k.mu.labels[key]
		}
	}
	return otherKeys
}
