package amqp

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	// mostMissing bounds the number of remembered exchanges.
	mostMissing = 4096
	// missingFor is how long an exchange counts as missing.
	missingFor = time.Second
)

// exchanges looks up exchanges before a lane is opened for them, so that a missing one harms no messages in flight. It
// belongs to the isolator.
type exchanges struct {
	*link
	// missing are exchanges that did not exist at the last look-up.
	missing map[string]missingExchange
}

type missingExchange struct {
	at      time.Time
	verdict verdict
}

func newExchanges(c *link) exchanges {
	return exchanges{link: c, missing: make(map[string]missingExchange)}
}

// examine checks whether the exchange exists and may be written to. Cause is why the broker closed its last lane; nil:
// unknown, or there was none. A verdict without an outcome means yes, or unknown.
func (x *exchanges) examine(exchange string, cause *amqp091.Error) verdict {
	if exchangeForbidden(cause) {
		return exceptionVerdict(cause)
	}
	if exchange == "" {
		return verdict{}
	}
	if r, ok := x.missing[exchange]; ok && time.Since(r.at) < missingFor {
		return r.verdict
	}
	return x.ask(exchange)
}

// ask declares the exchange passively on its own channel, because the broker closes the channel if the exchange does
// not exist.
func (x *exchanges) ask(exchange string) verdict {
	err := x.limited("look up exchange", func() error {
		channel, err := x.connection.Channel()
		if err != nil {
			return err
		}
		err = channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
		if err != nil {
			return err
		}
		return channel.Close()
	})
	var exception *amqp091.Error
	switch {
	case err == nil:
		delete(x.missing, exchange)
		return verdict{}
	case !x.connection.IsClosed() && errors.As(err, &exception) && exception.Server && !loginExpired(exception):
		v := exceptionVerdict(exception)
		if len(x.missing) >= mostMissing {
			clear(x.missing)
		}
		x.missing[exchange] = missingExchange{at: time.Now(), verdict: v}
		x.tellFirstAnswer()
		return v
	}
	x.lose(fmt.Errorf("look up exchange: %w", err))
	return lostBeforeSent()
}
