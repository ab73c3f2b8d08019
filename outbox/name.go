package outbox

import "strings"

// LongestName is the most bytes of an AMQP routing key or exchange name.
const LongestName = 255

// Shortened cuts a routing key or exchange that is too long for AMQP, for display.
func Shortened(name string) string {
	if len(name) <= LongestName {
		return name
	}
	return strings.ToValidUTF8(name[:LongestName], "")
}
