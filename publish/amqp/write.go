package amqp

import (
	"errors"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// entry is one message on its way.
type entry struct {
	message *outbox.Message
	parcel  parcel
	lane    *lane
	flight  int  // number of its flight on the route; 0: none
	resent  bool // it was sent before, on a lane that died
	suspect bool // connections may have ended because of it
	epoch   int  // of the throttle

	// The writer sets these before it reports the message.
	confirm            *amqp091.DeferredConfirmation
	err                error
	unfit              error // why it cannot be sent
	beganAt, writtenAt time.Time

	published bool          // the writer has reported it
	began     time.Duration // on the clock, before it was sent
	wait      wait          // since the socket had taken the whole message
	content   content       // only if the lane has had a return
	returned  *amqp091.Return
}

// resolved reports, without blocking, whether the outcome of the entry is known.
func (e *entry) resolved() bool {
	if !e.published {
		return false
	}
	if e.err != nil {
		return true
	}
	select {
	case <-e.confirm.Done():
		return true
	default:
		return false
	}
}

// write is the helper that gives messages to the library, which blocks while the socket does not take the bytes.
func (s *session) write() {
	var batch []*entry
	for {
		select {
		case <-s.toWrite.Wake():
		case <-s.ended:
		}
		batch = s.toWrite.Take(batch)
		if len(batch) == 0 && s.over() {
			return
		}
		s.writeAll(batch)
	}
}

// writeAll sends messages in as few writes as possible.
func (s *session) writeAll(batch []*entry) {
	if len(batch) == 0 {
		return
	}
	since := batch[0].message.TakenAt
	for _, e := range batch[1:] {
		if e.message.TakenAt.Before(since) {
			since = e.message.TakenAt
		}
	}
	s.socket.cork(since)
	written, bytes := 0, 0
	for _, e := range batch {
		bytes += len(e.message.Payload)
		if bytes > coalesced && written > 0 { // their answers may come before this one is written
			s.events.Put(happened{written: written})
			written, bytes = 0, 0
		}
		s.send(e)
		written++
	}
	s.events.Put(happened{written: written, failed: s.socket.uncork()})
}

// send passes a message to the library.
func (s *session) send(e *entry) {
	e.beganAt = time.Now()
	p := e.parcel
	if !p.marked && e.message.MayBeKnown() { // it has waited for the writer
		p, e.unfit = s.encode(e.message, true)
	}
	switch {
	case e.unfit != nil || s.over():
		e.err = amqp091.ErrClosed
	default:
		// mandatory: the broker returns an unroutable message instead of dropping it.
		e.confirm, e.err = e.lane.channel.PublishWithDeferredConfirm(p.exchange, p.key, true, false, p.body)
	}
	if !errors.Is(e.err, amqp091.ErrClosed) {
		e.message.SentAt = e.beganAt
	}
	e.writtenAt = time.Now()
}

// parcel is a message as the library takes it.
type parcel struct {
	exchange, key string
	body          amqp091.Publishing
	marked        bool
}

func (s *session) encode(m *outbox.Message, possibleDuplicate bool) (parcel, error) {
	limits := s.limits
	limits.MostBody = s.MostBody()
	p, err := wire.Encode(m, limits, possibleDuplicate)
	if err != nil {
		return parcel{}, err
	}
	body := amqp091.Publishing{
		Headers: table(p.Headers), ContentType: p.ContentType, ContentEncoding: p.ContentEncoding,
		DeliveryMode: p.DeliveryMode, CorrelationId: p.CorrelationID, ReplyTo: p.ReplyTo,
		Expiration: p.Expiration, MessageId: p.MessageID, Timestamp: p.Timestamp, Type: p.Type,
		UserId: p.UserID, AppId: p.AppID, Body: p.Body,
	}
	setPriority(&body, p.Priority)
	return parcel{exchange: p.Exchange, key: p.Key, marked: possibleDuplicate, body: body}, nil
}

// table gives an object the library's type, and the objects in it.
func table(object map[string]any) amqp091.Table {
	for name, value := range object {
		switch value.(type) {
		case map[string]any, []any:
			object[name] = field(value)
		}
	}
	return object
}

func field(value any) any {
	switch v := value.(type) {
	case map[string]any:
		return table(v)
	case []any:
		for i, element := range v {
			v[i] = field(element)
		}
	}
	return value
}
