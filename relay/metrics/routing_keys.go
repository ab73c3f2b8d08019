package metrics

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// routingKeys is the label routing_key.
type routingKeys struct {
	patterns []*regexp.Regexp
	values   *values
}

func newRoutingKeys(patterns []string) (*routingKeys, error) {
	k := &routingKeys{values: newValues()}
	for _, pattern := range patterns {
		if pattern == "" || len(pattern) > outbox.LongestName {
			return nil, fmt.Errorf(
				"MetricsRoutingKeys %q: want patterns of 1 to 255 bytes, separated by commas", pattern)
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

func (k *routingKeys) label() string { return "routing_key" }

func (k *routingKeys) valueOf(m *outbox.Message) string {
	return shownAs(k.values, m.RoutingKey, k.match)
}

func (k *routingKeys) match(key string) bool {
	for _, pattern := range k.patterns {
		if pattern.MatchString(key) {
			return true
		}
	}
	return false
}
