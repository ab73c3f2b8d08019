package outbox

import "strings"

// LongestName is how many bytes AMQP allows a routing key and the name of an exchange.
const LongestName = 255

// Shortened cuts a routing key or an exchange that AMQP cannot carry, for logs and the like.
func Shortened(name string) string {
	if len(name) <= LongestName {
		return name
	}
	return strings.ToValidUTF8(name[:LongestName], "")
}
