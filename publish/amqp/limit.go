package amqp

import (
	"fmt"
	"strings"
)

// MostBody implements publish.Limited.
func (p *Publisher) MostBody() int { return int(p.mostBody.Load()) }

// bodySizes returns the size of a body that RabbitMQ rejects, and the largest that it accepts, from its text: "message
// size 20 is larger than max size 16", or "configured max size" since 3.12. The first is 0 if the text is another one.
func bodySizes(text string) (size, most int) {
	_, text, _ = strings.Cut(text, "message size ")
	_, limit, _ := strings.Cut(text, "max size ")
	if _, err := fmt.Sscanf(text, "%d", &size); err != nil {
		return 0, 0
	}
	_, _ = fmt.Sscanf(limit, "%d", &most) // it stays 0
	return size, most
}
