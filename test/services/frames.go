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

// Frames is a proxy that changes or delays what RabbitMQ sends, frame by frame.
type Frames struct {
	listener net.Listener
	target   string
	rule     atomic.Pointer[FrameRule]
	done     sync.WaitGroup
}

// FrameRule may change a frame, and returns how long to hold it. Other frames do not wait for it.
type FrameRule func(frame []byte) time.Duration

// NewFrames forwards to target, a broker's host:port, until the test ends.
func NewFrames(t testing.TB, target string) *Frames {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	Must(t, err)
	p := &Frames{listener: listener, target: target}
	p.Rule(func([]byte) time.Duration { return 0 })
	p.done.Go(p.accept)
	t.Cleanup(func() { _ = listener.Close(); p.done.Wait() })
	return p
}

// Addr returns host:port.
func (p *Frames) Addr() string { return p.listener.Addr().String() }

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

func (p *Frames) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		both := func() { _ = client.Close(); _ = server.Close() }
		p.done.Go(func() { defer both(); _, _ = io.Copy(server, client) })
		p.done.Go(func() { defer both(); p.forward(client, server) })
	}
}

// forward passes the server's frames on until one side ends.
func (p *Frames) forward(client, server net.Conn) {
	const header, end = 7, 1
	var writing sync.Mutex
	write := func(frame []byte) {
		writing.Lock()
		defer writing.Unlock()
		_, _ = client.Write(frame)
	}
	for {
		head := make([]byte, header)
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		frame := append(head, make([]byte, int(binary.BigEndian.Uint32(head[3:]))+end)...)
		if _, err := io.ReadFull(server, frame[header:]); err != nil {
			return
		}
		if wait := (*p.rule.Load())(frame); wait > 0 {
			time.AfterFunc(wait, func() { write(frame) })
			continue
		}
		write(frame)
	}
}
