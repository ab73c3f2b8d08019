package services

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Serve listens on loopback until the test ends, and gives each connection to serve, which has its own goroutine. The
// connection is closed when serve returns.
func Serve(t testing.TB, serve func(client net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	Must(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for client, err := listener.Accept(); err == nil; client, err = listener.Accept() {
			running.Go(func() {
				defer func() { _ = client.Close() }()
				serve(client)
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); running.Wait() })
	return listener.Addr().String()
}

// Between is Serve for what stands between clients and a server, the host:port target: fromClient and fromServer pass
// the bytes of one connection on. When one of them returns, both sides are closed.
func Between(t testing.TB, target string, fromClient, fromServer func(client, server net.Conn)) (address string) {
	t.Helper()
	return Serve(t, func(client net.Conn) {
		server, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		both := func() { _, _ = client.Close(), server.Close() }
		var answers sync.WaitGroup
		answers.Go(func() { defer both(); fromServer(client, server) })
		defer answers.Wait()
		defer both()
		fromClient(client, server)
	})
}

// Answers passes on what the server sends, as it is.
func Answers(client, server net.Conn) { _, _ = io.Copy(client, server) }

// AMQPFrames returns the frames that a peer sends after the protocol's header, each with its end octet.
func AMQPFrames(from io.Reader) func(yield func([]byte) bool) {
	const header, end = 7, 1
	return func(yield func([]byte) bool) {
		for {
			head := make([]byte, header)
			if _, err := io.ReadFull(from, head); err != nil {
				return
			}
			frame := append(head, make([]byte, int(binary.BigEndian.Uint32(head[3:]))+end)...)
			if _, err := io.ReadFull(from, frame[header:]); err != nil || !yield(frame) {
				return
			}
		}
	}
}

// Frames is a proxy that changes or delays what RabbitMQ and its clients send, frame by frame.
type Frames struct {
	address string
	rule    atomic.Pointer[FrameRule]
	client  ClientRule
	writing sync.Mutex // whole frames to clients
}

// ClientRule returns what to send for a frame of a client. nil ends the connection.
type ClientRule func(client net.Conn, frame []byte) []byte

// FrameRule may change a frame, and returns how long to hold it. Other frames do not wait for it.
type FrameRule func(frame []byte) time.Duration

// NewFrames forwards to target, a broker's host:port, until the test ends. The rule for clients may be nil.
func NewFrames(t testing.TB, target string, client ClientRule) *Frames {
	t.Helper()
	p := &Frames{client: client}
	if client == nil {
		p.client = func(_ net.Conn, frame []byte) []byte { return frame }
	}
	p.Rule(func([]byte) time.Duration { return 0 })
	p.address = Between(t, target, p.fromClient, p.fromServer)
	return p
}

// Addr returns host:port.
func (p *Frames) Addr() string { return p.address }

// Rule sets the rule for further frames.
func (p *Frames) Rule(rule FrameRule) { p.rule.Store(&rule) }

// LateConfirms holds confirms; 0: no longer.
func (p *Frames) LateConfirms(by time.Duration) {
	p.Rule(func(frame []byte) time.Duration {
		if IsConfirm(frame) {
			return by
		}
		return 0
	})
}

// IsConfirm reports whether a frame is a basic.ack. Its delivery tag is in the eight bytes from ConfirmTag on.
func IsConfirm(frame []byte) bool {
	const method, basic, ack = 1, 60, 80
	if len(frame) < ConfirmTag { // a heartbeat
		return false
	}
	class, name := binary.BigEndian.Uint16(frame[7:]), binary.BigEndian.Uint16(frame[9:])
	return frame[0] == method && class == basic && name == ack
}

// ConfirmTag is where a basic.ack has its delivery tag.
const ConfirmTag = 11

func (p *Frames) fromClient(client, server net.Conn) {
	const header = len("AMQP") + 4
	if _, err := io.CopyN(server, client, int64(header)); err != nil {
		return
	}
	for frame := range AMQPFrames(client) {
		frame = p.client(client, frame)
		if _, err := server.Write(frame); err != nil || frame == nil {
			return
		}
	}
}

func (p *Frames) fromServer(client, server net.Conn) {
	for frame := range AMQPFrames(server) {
		if wait := (*p.rule.Load())(frame); wait > 0 {
			time.AfterFunc(wait, func() { p.Send(client, frame) })
			continue
		}
		p.Send(client, frame)
	}
}

// Send sends a frame to a client, between those of the server.
func (p *Frames) Send(client net.Conn, frame []byte) {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, _ = client.Write(frame)
}
