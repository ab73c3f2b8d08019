package amqp

import "time"

// pending has the unanswered entries of a session, in the order sent. It belongs to the reaper. The functions given to
// its methods may add entries, and search it with match.
type pending struct {
	entries []*entry
	head    int // index in entries; all entries before it are done
}

func (p *pending) add(e *entry) { p.entries = append(p.entries, e) }

func (p *pending) empty() bool { return p.head == len(p.entries) }

// oldest returns the entry that was sent first. There must be one.
func (p *pending) oldest() *entry { return p.entries[p.head] }

// pop removes entries, oldest first, up to the first unanswered one. It calls settle for each before it is removed.
func (p *pending) pop(settle func(*entry)) {
	for !p.empty() && p.oldest().resolved() {
		settle(p.oldest())
		p.entries[p.head] = nil
		p.head++
	}
	switch {
	case p.empty():
		p.entries, p.head = p.entries[:0], 0
	case p.head > 1024 && p.head > len(p.entries)/2:
		p.entries = append(p.entries[:0], p.entries[p.head:]...)
		p.head = 0
	}
}

// keep removes the entries for which f returns false. During the call there may be gaps, which match skips.
func (p *pending) keep(f func(*entry) bool) {
	kept := p.head
	for i := p.head; i < len(p.entries); i++ {
		e := p.entries[i]
		keep := f(e)
		p.entries[i] = nil
		if keep {
			p.entries[kept] = e
			kept++
		}
	}
	p.entries = p.entries[:kept]
}

// oldestSent returns when the oldest entry was sent. A large body that is still being written does not count; the
// socket's write timeout bounds it.
func (p *pending) oldestSent() (at time.Duration, some bool) {
	for _, e := range p.entries[p.head:] {
		if e.published.Load() && (!some || e.sentAt < at) {
			at, some = e.sentAt, true
		}
	}
	return at, some
}
