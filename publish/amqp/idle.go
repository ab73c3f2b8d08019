package amqp

import (
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// checkIdle gives up a connection without messages in flight if RabbitMQ does not answer on it. So a standby does not
// count as ready in an outage that its leader has found: the slot would move in vain. A quarter of the send timeout is
// earlier than the leader hands over.
func (s *session) checkIdle() {
	const least = 500 * time.Millisecond
	tick := time.NewTicker(max(s.sendTimeout/4, least))
	defer tick.Stop()
	var channel *amqp091.Channel
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		if s.inFlight.Load() > 0 || s.blocked.Load() {
			continue
		}
		_ = s.limited("check the idle connection", func() (err error) {
			if channel == nil || channel.IsClosed() {
				channel, err = s.connection.Channel()
				return err
			}
			return channel.Qos(1, 0, false) // it changes nothing for a channel without consumers
		}) // an error ends the connection, or the next check opens another channel
	}
}
