package services

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction is one direction of a connection through a [Proxy].
type Direction int

// The directions, as seen by the client.
const (
	Upstream   Direction = iota // from the client to the server
	Downstream                  // from the server to the client
)

// Sorter determines the kind of a connection from the first bytes of the client. It is called with all bytes so far
// until known is true; "" is a valid kind.
type Sorter func(sent []byte) (kind string, known bool)

// Proxy is a TCP proxy on loopback that breaks connections as networks do: all of them, or with Only those of one kind.
type Proxy struct {
	Kind // all connections

	listener net.Listener
	target   string
	sort     Sorter
	done     sync.WaitGroup // for the accept loop and every connection's goroutines

	mu     sync.Mutex
	change *sync.Cond // signals changes of troubles, links and closed
	all    trouble
	kinds  map[string]*trouble
	closed bool
	links  map[*link]struct{}
}

// trouble is what the proxy does to connections.
type trouble struct {
	held   [2]bool // directions that forward nothing
	late   [2]time.Duration
	rate   int // bytes a second to the client; 0: no limit
	refuse bool
}

// piece is the result of one read.
type piece struct {
	bytes []byte
	at    time.Time
	err   error // the error that ended the connection after it
}

// mostLatePieces limits what is in flight in a delayed direction.
const mostLatePieces = 1024

// link is one connection of a client and its connection to the target. The proxy's mutex guards its flags.
type link struct {
	client, server net.Conn
	kind           string
	known          bool // of kind
	cut            bool
}

// NewProxy forwards to target, a host:port, until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p, err := StartProxy(target, nil)
	Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// StartProxy forwards to target, a host:port, until it is closed. With a sorter, Only can break connections of one
// kind.
func StartProxy(target string, sort Sorter) (*Proxy, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy of %s: %w", target, err)
	}
	return newProxy(listener, target, sort), nil
}

func newProxy(listener *net.TCPListener, target string, sort Sorter) *Proxy {
	p := &Proxy{
		listener: listener, target: target, sort: sort,
		kinds: map[string]*trouble{}, links: map[*link]struct{}{},
	}
	p.change = sync.NewCond(&p.mu)
	p.Kind = Kind{proxy: p, trouble: &p.all, has: func(*link) bool { return true }}
	p.done.Go(p.accept)
	return p
}

// Addr returns the host:port that clients use in place of the target.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Connections returns how many connections are open through the proxy.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// AwaitConnections waits until at least n connections are open, or the proxy is closed.
func (p *Proxy) AwaitConnections(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.links) < n && !p.closed {
		p.change.Wait()
	}
}

// Slow limits each connection to this many bytes a second to the client. What the client cannot get yet stays with the
// server. 0 ends the limit.
func (p *Proxy) Slow(bytesPerSecond int) { p.set(func() { p.all.rate = bytesPerSecond }) }

// slow waits as long as a slow connection needs for some bytes.
func (p *Proxy) slow(bytes int) {
	p.mu.Lock()
	rate := p.all.rate
	p.mu.Unlock()
	if rate > 0 {
		time.Sleep(time.Duration(bytes) * time.Second / time.Duration(rate))
	}
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.change.Broadcast()
}

// Close resets all connections, stops listening, and waits until every goroutine of the proxy has ended.
func (p *Proxy) Close() {
	p.set(func() { p.closed = true })
	_ = p.listener.Close()
	p.Cut()
	p.done.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.done.Go(func() { p.connect(client) })
	}
}

// connect connects a client to the target, unless it is to be refused.
func (p *Proxy) connect(client net.Conn) {
	p.mu.Lock()
	refused := p.all.refuse || p.closed
	p.mu.Unlock()
	if refused {
		reset(client)
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.all.refuse {
		p.drop(l)
		return
	}
	p.links[l] = struct{}{}
	p.change.Broadcast()
	p.done.Go(func() { p.forward(l, Upstream, server, client) })
	p.done.Go(func() { p.forward(l, Downstream, client, server) })
}

// drop resets a link. The caller holds the mutex.
func (p *Proxy) drop(l *link) {
	l.cut = true
	reset(l.client)
	reset(l.server)
	delete(p.links, l)
	p.change.Broadcast()
}

// forward reads until the side ends. It does not read while the direction is held.
func (p *Proxy) forward(l *link, direction Direction, to, from net.Conn) {
	pieces := make(chan piece, mostLatePieces)
	p.done.Go(func() { p.deliver(l, direction, to, pieces) })
	defer close(pieces)
	buffer := make([]byte, 32*1024)
	for {
		n, err := from.Read(buffer)
		if direction == Upstream {
			p.learnKind(l, buffer[:n])
		} else {
			p.slow(n)
		}
		if !p.awaitPass(l, direction, time.Time{}) {
			return
		}
		pieces <- piece{bytes: bytes.Clone(buffer[:n]), at: time.Now(), err: err}
		if err != nil {
			return
		}
	}
}

// deliver writes what was read when it is due, and then ends the link: clients of a database or a broker do not use
// half-closed connections.
func (p *Proxy) deliver(l *link, direction Direction, to net.Conn, pieces <-chan piece) {
	ended := false
	for piece := range pieces {
		if ended || !p.awaitPass(l, direction, piece.at) {
			continue // forward must not block on the channel
		}
		_, err := to.Write(piece.bytes)
		switch {
		case piece.err != nil, err != nil && direction == Downstream:
			p.end(l)
			ended = true
		case err != nil: // the other direction ends the link, after what the server has still to say
			ended = true
		}
	}
}

// awaitPass waits while the direction is held and until the delay has passed. It returns false if the link was cut.
func (p *Proxy) awaitPass(l *link, direction Direction, read time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !l.cut {
		left := time.Duration(0)
		if !read.IsZero() {
			left = time.Until(read.Add(p.delayOf(l, direction)))
		}
		switch held := p.isPaused(l, direction); {
		case held:
			p.change.Wait()
		case left > 0:
			over := time.AfterFunc(left, func() { p.set(func() {}) })
			p.change.Wait()
			over.Stop()
		default:
			return true
		}
	}
	return false
}

// end closes both sides in an orderly way, after what was written.
func (p *Proxy) end(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.cut = true
	_ = l.client.Close()
	_ = l.server.Close()
	delete(p.links, l)
	p.change.Broadcast()
}

// reset closes a connection so that the other side sees a reset.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

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
