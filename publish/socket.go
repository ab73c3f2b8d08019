package publish

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/rawnet"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// socket is the TCP connection beneath the AMQP library, which knows no write
// deadline and sets its read deadline from a goroutine that a stuck write stops.
// Here each Read and Write sets its own. The library's deadlines are ignored.
//
// Closing the socket is the only way to end the library's calls for certain.
type socket struct {
	net.Conn
	writeTimeout time.Duration
	clock        *clock // stands still while the broker has blocked the connection

	// readTimeout is the longest silence in nanoseconds, 0 for none; set once after
	// the handshake, read by the library's reader.
	readTimeout atomic.Int64
	// handshake holds while the deadline of the whole handshake is in force.
	handshake atomic.Bool
	closeOnce sync.Once

	// writing guards what follows, and is held while bytes are on their way.
	writing sync.Mutex
	corked  bool
	corking []byte    // written and not yet sent
	since   time.Time // the least TakenAt of those without a mark, or before
	failed  error     // what went wrong when they were sent
}

// coalesced is how many bytes a corked socket collects at most.
const coalesced = 32 << 10

// dialSocket connects within accept. The deadline of ctx bounds the handshake that follows.
func dialSocket(ctx context.Context, network, addr string, accept, writeTimeout time.Duration, c *clock) (*socket, error) {
	dialer := net.Dialer{Timeout: accept}
	raw, err := dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	if err := raw.SetDeadline(deadline); err != nil {
		_ = raw.Close()
		return nil, err
	}
	s := &socket{Conn: rawnet.Wrap(raw), writeTimeout: writeTimeout, clock: c}
	s.handshake.Store(true)
	return s, nil
}

// established ends the deadline of the handshake. From then on a peer that is
// silent for longer than silence is gone; 0 waits for ever.
func (s *socket) established(silence time.Duration) error {
	s.readTimeout.Store(int64(silence))
	s.handshake.Store(false)
	var deadline time.Time
	if silence > 0 {
		deadline = time.Now().Add(silence)
	}
	if err := s.Conn.SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	return s.Conn.SetReadDeadline(deadline)
}

func (s *socket) Read(b []byte) (int, error) {
	if silence := time.Duration(s.readTimeout.Load()); silence > 0 && !s.handshake.Load() {
		if err := s.Conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return 0, err
		}
	}
	return s.Conn.Read(b)
}

// Write sends what it is given, or collects it while the socket is corked: the library
// writes once for each message, and each would cost a system call here and a packet at
// the broker.
func (s *socket) Write(b []byte) (int, error) {
	if s.handshake.Load() {
		return s.Conn.Write(b)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.failed != nil {
		return 0, s.failed
	}
	if s.corked && len(s.corking)+len(b) <= coalesced {
		s.corking = append(s.corking, b...)
		return len(b), nil
	}
	if err := s.flush(); err != nil {
		return 0, err
	}
	n, err := s.send(b)
	s.collectSince(s.since)
	return n, err
}

// errStoodStill: the process was stopped, or got no processor, with messages about to be sent.
var errStoodStill = errors.New("this process stood still with messages about to be sent")

// cork has writes collected until uncork, which the caller owes soon. Since is the least TakenAt of what is to be written.
func (s *socket) cork(since time.Time) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.corked = true
	s.collectSince(since)
}

// collectSince: what is collected from now on was taken then, or later. What is older than CertainFor will carry a mark.
func (s *socket) collectSince(taken time.Time) {
	s.since = taken
	if marked := time.Now().Add(-outbox.CertainFor); taken.Before(marked) {
		s.since = marked
	}
}

// uncork sends what was collected.
func (s *socket) uncork() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.corked = false
	return s.flush()
}

// flush does not send what has waited for long: by then another relay may have taken over and
// published the same messages, and these do not say so.
func (s *socket) flush() error {
	if len(s.corking) == 0 || s.failed != nil {
		return s.failed
	}
	if outbox.Elapsed(s.since, time.Now()) > outbox.CertainFor+outbox.WriteFor {
		s.failed = errStoodStill
	} else {
		_, s.failed = s.send(s.corking)
	}
	s.corking = s.corking[:0]
	s.collectSince(s.since)
	return s.failed
}

// send continues after a timeout while the connection is blocked: the
// broker then does not read on purpose.
func (s *socket) send(b []byte) (int, error) {
	written := 0
	for {
		if err := s.Conn.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
			return written, err
		}
		n, err := s.Conn.Write(b[written:])
		written += n
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || s.clock.running() {
			return written, err
		}
	}
}

// Close may be called several times, by the library and by the session.
func (s *socket) Close() error {
	var err error
	s.closeOnce.Do(func() {
		err = s.Conn.Close()
	})
	return err
}

// SetDeadline leaves the deadlines to the socket.
func (s *socket) SetDeadline(time.Time) error { return nil }

// SetReadDeadline leaves the deadlines to the socket.
func (s *socket) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline leaves the deadlines to the socket.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }
