package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

// endWithin is how long the end of a session may take, unless a call into the library does not return.
const endWithin = 5 * time.Second

// serve publishes on a new connection until ctx is done or the connection is lost. When it returns, every sent message
// has its result.
func (p *Publisher) serve(ctx context.Context, s *session) {
	p.late = false
	p.cameBack(s.opened)
	p.setState(publish.Ready, "")
	closed := s.connection.NotifyClose(make(chan *amqp091.Error, 1))
	blocked := s.connection.NotifyBlocked(make(chan amqp091.Blocking, 16))

	var working, reaping sync.WaitGroup
	working.Go(func() { p.missing.ask(s) })
	sender, reaper := newSender(s), newReaper(s)
	stopReaper := make(chan struct{})
	working.Go(sender.run)
	reaping.Go(func() { reaper.run(stopReaper) })

	err := p.watch(ctx, s, closed, blocked)
	if err != nil {
		p.connectionLost(s, err)
	}
	p.due.Store(time.Now().Add(endWithin).UnixNano())
	defer p.due.Store(0)
	s.end()
	s.disconnect(err == nil)
	working.Wait()
	for range closed { // it is closed last, when every confirm is resolved
	}
	close(stopReaper)
	reaping.Wait()
	for _, r := range p.missing.unsure.Take(nil) {
		p.missing.excuse(r, 0, "the connection was lost meanwhile")
	}
	s.closing.Wait()
}

// watch returns when the session is over, with nil if ctx is done.
func (p *Publisher) watch(
	ctx context.Context, s *session, closed <-chan *amqp091.Error, blocked <-chan amqp091.Blocking,
) error {
	log := p.cfg.Logger
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.lost:
			p.late = true
			return err
		case reason, ok := <-closed:
			if !ok || reason == nil {
				return errors.New("the connection was closed")
			}
			return fmt.Errorf("the connection was closed: %s", amqpdial.ExceptionText(reason))
		case b, ok := <-blocked:
			switch {
			case !ok:
				blocked = nil // closed follows
			case b.Active:
				s.clock.stop()
				log.Warn("RabbitMQ blocked the connection: messages wait in the table until it accepts some again",
					"event", event.BrokerBlocked, "reason", b.Reason,
					"hint", "rabbitmq-diagnostics alarms  # free memory or disk of RabbitMQ")
				p.setState(publish.Blocked, "connection.blocked: "+b.Reason)
			default:
				s.clock.resume()
				log.Info("RabbitMQ unblocked the connection: publishing resumes", "event", event.BrokerUnblocked)
				p.setState(publish.Ready, "")
			}
			s.control.Put(laneNews{})
		case <-s.answered:
			p.outages = 0
			p.setState(p.state.Phase, p.state.Detail)
		}
	}
}

// connectionLost counts an outage if messages were unanswered, or if the broker did not answer another call.
func (p *Publisher) connectionLost(s *session, err error) {
	if s.heard.Load() {
		p.outages = 0
	}
	p.trouble.Report(event.BrokerLost, "RabbitMQ connection lost: messages wait in the table; reconnecting", err,
		"address", s.node.Address(), "in_flight", s.inFlight.Load())
	p.nodes.failed(s.node)
	if p.late || s.inFlight.Load() > 0 {
		p.outages++
	}
	p.setDown(err)
}

func (p *Publisher) cameBack(o opened) {
	args := []any{"address", o.node.Address(), "vhost", o.node.URI.Vhost}
	if o.attempts > 1 {
		args = append(args, "attempts", o.attempts)
	}
	if len(o.failures) > 0 {
		args = append(args, "failed", o.failures.Error())
	}
	if version, ok := o.connection.Properties["version"].(string); ok {
		args = append(args, "version", version)
	}
	if lasted := p.trouble.End(); lasted > 0 {
		p.missing.restored.Store(time.Now().UnixNano())
		args = append(args, "after", lasted)
	}
	p.cfg.Logger.Info("connected to RabbitMQ", append([]any{"event", event.BrokerConnected}, args...)...)
	p.connected = true
}

// session is what sender, jobs and reaper share during one connection: their mailboxes, and a few values of which the
// comments name the writer.
type session struct {
	*link
	limits wire.Limits
	sink   publish.Sink

	// in has the messages of the relay; the sender takes them while the session lives.
	in *publish.Mailbox[*outbox.Message]
	// control has events about lanes for the sender; from jobs, reaper and Publisher.watch.
	control *publish.Mailbox[laneNews]
	// sent has the sent messages for the reaper; from sender and jobs.
	sent *publish.Mailbox[reaperNews]
	// throttle bounds the unconfirmed messages of the sender; the reaper reports answers to it.
	throttle *throttle
	// suspects belongs to the publisher and outlives the session.
	suspects *publish.Suspects
	// exchanges do, too.
	exchanges map[string]lookUp

	// again: the publisher had a connection before this one.
	again bool
	// inFlight counts the messages that the library has and that have no result; maxInFlight bounds those of the
	// sender.
	inFlight    atomic.Int64
	maxInFlight int
	// impersonates: the broker has confirmed a message with the user_id of another user. Only the reaper sets it.
	impersonates atomic.Bool
	// mostBody belongs to the publisher. Only the reaper sets it.
	mostBody *atomic.Int64
}

// newSession takes over a new connection.
func newSession(p *Publisher, o opened) *session {
	s := &session{
		link: newLink(o, p.cfg.SendTimeout),
		limits: wire.Limits{
			DefaultExchange: p.cfg.DefaultExchange,
			FrameMax:        o.connection.Config.FrameSize,
		},
		sink:      p.inbox.Sink,
		in:        p.inbox.Messages,
		control:   publish.NewMailbox[laneNews](),
		sent:      publish.NewMailbox[reaperNews](),
		throttle:  newThrottle(newSendWindow(smallestWindow, p.cfg.MaxInFlight)),
		suspects:  p.suspects,
		exchanges: p.exchanges,
		mostBody:  &p.mostBody,

		again:       p.connected,
		maxInFlight: p.cfg.MaxInFlight,
	}
	s.mostBody.Store(0) // the limit of another node may differ, or somebody may have raised it
	if s.again {
		s.throttle.trial = min(time.Second, p.cfg.SendTimeout/2)
	}
	return s
}

// recovering reports whether the broker may still have to recover from what ended the last connection: it has confirmed
// nothing on this one, and the send timeout is not over. A quorum queue that has lost its leader rejects messages of
// new channels.
func (s *session) recovering() bool {
	return s.again && !s.heard.Load() && s.clock.now() < s.sendTimeout
}
