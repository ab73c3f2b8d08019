package services

import (
	"bytes"
	"time"
)

// Kind is connections through a [Proxy], open and future ones: those of one kind, or all. The faults of all add to
// those of a kind.
type Kind struct {
	proxy   *Proxy
	trouble *trouble
	has     func(*link) bool // called with the proxy's mutex
}

// Only selects the connections of the kind, as determined by the proxy's sorter.
func (p *Proxy) Only(kind string) Kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kinds[kind] == nil {
		p.kinds[kind] = &trouble{}
	}
	return Kind{
		proxy: p, trouble: p.kinds[kind], has: func(l *link) bool { return l.known && l.kind == kind },
	}
}

// Cut resets the open connections, on both sides.
func (k Kind) Cut() {
	k.proxy.mu.Lock()
	defer k.proxy.mu.Unlock()
	for l := range k.proxy.links {
		if k.has(l) {
			k.proxy.drop(l)
		}
	}
}

// Refuse resets new connections at once, or as soon as their kind is known; open ones stay.
func (k Kind) Refuse() { k.proxy.set(func() { k.trouble.refuse = true }) }

// Accept ends Refuse.
func (k Kind) Accept() { k.proxy.set(func() { k.trouble.refuse = false }) }

// BlackHole stops forwarding in the given directions, or in both if none is given. Connections stay open, and new ones
// are accepted. Bytes in flight are kept for Resume.
func (k Kind) BlackHole(directions ...Direction) {
	k.each(directions, func(d Direction) { k.trouble.held[d] = true })
}

// Resume ends BlackHole in the given directions, or in both if none is given.
func (k Kind) Resume(directions ...Direction) {
	k.each(directions, func(d Direction) { k.trouble.held[d] = false })
}

// Delay delays all bytes in the given directions, or in both if none is given, and also the end of a connection. 0 ends
// the delay.
func (k Kind) Delay(late time.Duration, directions ...Direction) {
	k.each(directions, func(d Direction) { k.trouble.late[d] = late })
}

func (k Kind) each(directions []Direction, change func(Direction)) {
	if len(directions) == 0 {
		directions = []Direction{Upstream, Downstream}
	}
	k.proxy.set(func() {
		for _, direction := range directions {
			change(direction)
		}
	})
}

// learnKind passes what the client sent to the sorter, and drops the link if its kind is refused.
func (p *Proxy) learnKind(l *link, sent []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sort == nil || l.known || l.cut || len(sent) == 0 {
		return
	}
	l.kind, l.known = p.sort(sent)
	if own := p.kinds[l.kind]; l.known && own != nil && own.refuse {
		p.drop(l)
	}
}

// isPaused reports whether the link forwards nothing in the direction. The caller holds the mutex.
func (p *Proxy) isPaused(l *link, direction Direction) bool {
	own := p.kinds[l.kind]
	return p.all.held[direction] || l.known && own != nil && own.held[direction]
}

// delayOf returns the delay of the link in the direction. The caller holds the mutex.
func (p *Proxy) delayOf(l *link, direction Direction) time.Duration {
	late := p.all.late[direction]
	if own := p.kinds[l.kind]; l.known && own != nil {
		late += own.late[direction]
	}
	return late
}

// The kinds of Postgres connections that PostgresKinds distinguishes.
const (
	Replication = "replication" // its startup packet asks for replication
	Ordinary    = "ordinary"    // everything else, also encrypted connections
)

// PostgresKinds is the [Sorter] for a proxy in front of Postgres.
func PostgresKinds(sent []byte) (string, bool) {
	const header = 8 // bytes: the length, and the protocol's version or the request's code
	if len(sent) == header {
		return "", false // SSLRequest or GSSENCRequest: the client waits for an answer before its startup packet
	}
	parameters := bytes.Split(sent[min(header, len(sent)):], []byte{0})
	for i := 0; i+1 < len(parameters); i += 2 {
		if string(parameters[i]) == "replication" {
			return Replication, true
		}
	}
	return Ordinary, true
}
