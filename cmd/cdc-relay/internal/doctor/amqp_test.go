package doctor

import (
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The broker can answer at any time. An exception that comes before the next call is not lost.
func TestAnExceptionBetweenTwoCallsIsReported(t *testing.T) {
	conn := services.DialAMQP(t, services.VHost(t))
	p := &amqpProbe{conn: conn}
	err := p.use(func(c *amqp.Channel) error {
		closed := c.NotifyClose(make(chan *amqp.Error, 1))
		if err := c.PublishWithContext(t.Context(), "no such exchange", "k", false, false, amqp.Publishing{}); err != nil {
			return err
		}
		<-closed
		return c.Tx()
	})
	var exception *amqp.Error
	if !errors.As(err, &exception) || exception.Code != amqp.NotFound {
		t.Errorf("got %v", err)
	}
	if err := p.use((*amqp.Channel).Tx); err != nil {
		t.Errorf("the next call got no channel of its own: %v", err)
	}
}
