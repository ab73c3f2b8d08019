package metrics

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// otherKeys is the label of routing keys that match no pattern.
const otherKeys = "other"

// mostLabels bounds the values of the label routing_key, including otherKeys.
const mostLabels = 100

// routingKeys maps routing keys to metric labels. It is safe for concurrent use.
type routingKeys struct {
	patterns []*regexp.Regexp
	mu       struct {
		sync.Mutex
		labels map[string]string // by matching routing key
	}
}

// CheckRoutingKeys returns an error for a pattern that New would reject.
func CheckRoutingKeys(patterns []string) error {
	_, err := newRoutingKeys(patterns)
	return err
}

// newRoutingKeys returns nil if there are no patterns.
func newRoutingKeys(patterns []string) (*routingKeys, error) {
	if len(patterns) == 0 {
		return nil, nil //nolint:nilnil // no key has a value of its own
	}
	k := &routingKeys{}
	k.mu.labels = make(map[string]string)
	for _, pattern := range patterns {
		if pattern == "" || len(pattern) > 255 {
			return nil, fmt.Errorf(
				"--metrics-routing-keys %q: want patterns of 1 to 255 bytes, separated by commas", pattern)
		}
		k.patterns = append(k.patterns, topicPattern(pattern))
	}
	return k, nil
}

// topicPattern matches like a binding of a topic exchange: * is one word, # is zero or more words.
func topicPattern(pattern string) *regexp.Regexp {
	expression := regexp.QuoteMeta(pattern)
	for _, replaced := range [][2]string{{`\.#`, `(\..*)?`}, {`#\.`, `(.*\.)?`}, {`#`, `.*`}} {
		expression = strings.ReplaceAll(expression, replaced[0], replaced[1])
	}
	// The replacements of # contain stars; those of the pattern are quoted, so they differ.
	expression = strings.ReplaceAll(expression, `\*`, `[^.]*`)
	return regexp.MustCompile(`(?s)^` + expression + `$`)
}

// label returns the label of a routing key: the key itself if it matches a pattern, up to mostLabels.
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
