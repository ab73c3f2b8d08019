package amqp

import (
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/publish/wire"
)

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
	// left counts the isolation lanes left open for an unanswered message.
	left atomic.Int64
	// tooLarge is the smallest body, in bytes, that the broker rejected on this connection; 0: none. Only the reaper
	// sets it.
	tooLarge atomic.Int64
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
		throttle:  newThrottle(newWindow(smallestWindow, p.cfg.MaxInFlight)),
		suspects:  p.suspects,
		exchanges: p.exchanges,

		again:       p.connected,
		maxInFlight: p.cfg.MaxInFlight,
	}
	s.throttle.careful = p.late
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
