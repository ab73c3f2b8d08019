package services

import (
	"bytes"
	"time"
)

// Kind is all connections of one kind through a [Proxy], open and future ones. Its faults add to those of the proxy.
type Kind struct {
	proxy *Proxy
	name  string
}

// Only selects the connections of the kind, as determined by the proxy's sorter.
func (p *Proxy) Only(kind string) Kind { return Kind{proxy: p, name: kind} }

// Cut resets the open connections of the kind, on both sides.
func (k Kind) Cut() {
	k.proxy.cut(func(l *link) bool { return l.known && l.kind == k.name })
}

// Refuse resets new connections of the kind as soon as it is known; open ones stay.
func (k Kind) Refuse() { k.set(func(t *trouble) { t.refuse = true }) }

// Accept ends Refuse.
func (k Kind) Accept() { k.set(func(t *trouble) { t.refuse = false }) }

// BlackHole is Proxy.BlackHole for the kind.
func (k Kind) BlackHole(directions ...Direction) {
	k.set(func(t *trouble) { t.hold(true, directions) })
}

// Resume ends BlackHole.
func (k Kind) Resume(directions ...Direction) {
	k.set(func(t *trouble) { t.hold(false, directions) })
}

// Delay is Proxy.Delay for the kind.
func (k Kind) Delay(d time.Duration, directions ...Direction) {
	k.set(func(t *trouble) { t.delay(d, directions) })
}

func (k Kind) set(change func(*trouble)) {
	k.proxy.set(func() {
		if k.proxy.kinds[k.name] == nil {
			k.proxy.kinds[k.name] = &trouble{}
		}
		change(k.proxy.kinds[k.name])
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
