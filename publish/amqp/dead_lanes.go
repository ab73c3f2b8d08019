package amqp

import (
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// deadLanes collects the messages of lanes that the broker closed. Once the sender uses a lane no more and all its
// entries are settled, its messages go to the isolator. It belongs to the reaper.
type deadLanes struct {
	*session
	dying []*lane // closed by the broker; their resends may still be here
}

// add keeps a message for the isolator, and tells the sender at the first one that the lane is closed.
func (d *deadLanes) add(l *lane, r resend) {
	l.resends = append(l.resends, r)
	if !l.dying {
		l.dying = true
		d.dying = append(d.dying, l)
		d.control.Put(laneNews{lane: l})
	}
}

// afterAnswer closes a sealed lane without unanswered messages, and passes its resends to the isolator.
func (d *deadLanes) afterAnswer(l *lane) {
	if !l.sealed || l.waiting > 0 {
		return
	}
	if !l.channel.IsClosed() {
		d.closeChannel(l.channel)
	}
	if !l.shared {
		d.left.Add(-1)
	}
	if l.evicted && len(l.resends) == 0 {
		return
	}
	d.jobs.Put(job{exchange: &l.exchange, opens: !l.evicted, cause: l.reason(), messages: l.resends})
	l.resends = nil
	d.dying = slices.DeleteFunc(d.dying, func(other *lane) bool { return other == l })
}

// finish reports all messages that were not sent again, after the isolator has stopped.
func (d *deadLanes) finish() {
	for _, l := range d.dying {
		d.giveUp(l.resends)
	}
	for _, j := range d.jobs.Take(nil) {
		d.giveUp(j.messages)
	}
}

func (d *deadLanes) giveUp(resends []resend) {
	for _, r := range resends {
		outcome := outbox.NotSent
		if r.sent {
			outcome = outbox.Unknown
		}
		d.deliver(r.message, outcome, "", "the connection was lost before the message was sent alone")
	}
}
