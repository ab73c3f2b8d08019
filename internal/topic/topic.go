// Package topic matches routing keys as a binding of a topic exchange does.
package topic

import "strings"

// Matches reports whether a pattern matches a routing key: * is one word, # is zero or more words.
func Matches(pattern, key string) bool {
	words := split(key)
	// reached[i]: the pattern so far can match the first i words.
	reached := make([]bool, len(words)+1)
	reached[0] = true
	for _, p := range split(pattern) {
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

// split returns the words. An empty text has none, as for RabbitMQ.
func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ".")
}
