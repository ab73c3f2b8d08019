package metrics

import (
	"fmt"
	"slices"

	"github.com/cdc-relay/cdc-relay/internal/topic"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// routingKeys is the label routing_key.
type routingKeys struct {
	patterns []string
	values   *values
}

func newRoutingKeys(patterns []string) (*routingKeys, error) {
	k := &routingKeys{patterns, newValues()}
	for _, pattern := range patterns {
		if pattern == "" || len(pattern) > outbox.LongestName {
			return nil, fmt.Errorf(
				"MetricsRoutingKeys %q: want patterns of 1 to 255 bytes, separated by commas", pattern)
		}
	}
	return k, nil
}

func (k *routingKeys) label() string { return "routing_key" }

func (k *routingKeys) valueOf(m *outbox.Message) string {
	return shownAs(k.values, m.RoutingKey, k.match)
}

func (k *routingKeys) match(key string) bool {
	return slices.ContainsFunc(k.patterns, func(pattern string) bool { return topic.Matches(pattern, key) })
}
