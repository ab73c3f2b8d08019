package amqp

import "slices"

// deadLanes collects the messages of lanes that the broker closed. Once the sender uses a lane no more and all its
// entries are settled, it gets the messages back as a job. It belongs to the reaper.
type deadLanes struct {
	*session
	dying []*lane // closed by the broker; their resends may still be here
}

// add keeps a message for the job, and tells the sender at the first one that the lane is closed.
func (d *deadLanes) add(l *lane, r resend) {
	l.resends = append(l.resends, r)
	if !l.dying {
		l.dying = true
		d.dying = append(d.dying, l)
		d.control.Put(laneNews{lane: l})
	}
}

// afterAnswer closes a sealed lane without unanswered messages, and passes its resends to the sender.
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
	d.control.Put(laneNews{job: &job{
		exchange: l.exchange, opens: !l.evicted, messages: l.resends, dead: true, cause: l.reason(),
	}})
	l.resends = nil
	d.dying = slices.DeleteFunc(d.dying, func(other *lane) bool { return other == l })
}

// finish reports all messages that were not sent again, after the sender has stopped.
func (d *deadLanes) finish() {
	for _, l := range d.dying {
		d.giveUpAll(l.resends)
	}
	for _, n := range d.control.Take(nil) {
		if n.job != nil {
			d.giveUpAll(n.job.messages)
		}
	}
}
