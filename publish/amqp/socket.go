package amqp

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/rawnet"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// socket is the TCP connection below the AMQP library. The library has no write deadline, and a stuck write also stops
// the goroutine that sets its read deadline. So each Read and Write here sets its own deadline, and the library's
// deadlines are ignored. Only closing the socket reliably ends the library's calls
// (https://github.com/rabbitmq/amqp091-go/issues/178 and 225). The library also writes once for each message (pull
// request 142); a call that takes several messages would replace cork and uncork.
type socket struct {
	net.Conn
	writeTimeout time.Duration
	blocked      atomic.Bool // the broker blocks the connection

	// readTimeout is the longest silence in nanoseconds, 0: no limit. It is set once after the handshake.
	readTimeout atomic.Int64

	// writing guards the fields below, and is held during a write.
	writing sync.Mutex
	corked  bool
	corking []byte    // collected and not yet sent
	since   time.Time // at most the least TakenAt of the collected messages without a mark
	failed  error     // the error of sending them
}

// coalesced is how many bytes a corked socket collects at most.
const coalesced = 32 << 10

// dialSocket connects within accept.
func dialSocket(
	ctx context.Context, network, addr string, accept, writeTimeout time.Duration,
) (*socket, error) {
	raw, err := amqpdial.DialHost(ctx, network, addr, accept)
	if err != nil {
		return nil, err
	}
	return &socket{Conn: rawnet.Wrap(raw), writeTimeout: writeTimeout}, nil
}

// established follows the handshake. From then on, a peer that is silent for longer than silence is lost; 0: no limit.
func (s *socket) established(silence time.Duration) error {
	s.readTimeout.Store(int64(silence))
	if silence == 0 {
		return nil
	}
	return s.Conn.SetReadDeadline(time.Now().Add(silence))
}

func (s *socket) Read(b []byte) (int, error) {
	if silence := time.Duration(s.readTimeout.Load()); silence > 0 {
		if err := s.Conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return 0, err
		}
	}
	return s.Conn.Read(b)
}

// Write sends the bytes, or collects them while the socket is corked. The library writes once for each message; sending
// each would cost a system call here and a packet at the broker.
func (s *socket) Write(b []byte) (int, error) {
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

// errStoodStill: the process was paused, or got no processor, with messages about to be sent.
var errStoodStill = errors.New("this process stood still with messages about to be sent")

// cork collects writes until uncork, which the caller must call soon. Since is the least TakenAt of the messages to
// write.
func (s *socket) cork(since time.Time) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.corked = true
	s.collectSince(since)
}

// collectSince sets since. Messages taken more than CertainFor ago get a mark, so they do not count.
func (s *socket) collectSince(taken time.Time) {
	s.since = taken
	if marked := time.Now().Add(-outbox.CertainFor); taken.Before(marked) {
		s.since = marked
	}
}

// uncork sends the collected bytes.
func (s *socket) uncork() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.corked = false
	return s.flush()
}

// flush fails if the collected messages have waited too long: another relay may have taken over and published them, and
// these have no mark.
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

// send continues after a timeout while the connection is blocked, because the broker then does not read.
func (s *socket) send(b []byte) (int, error) {
	written := 0
	for {
		if err := s.Conn.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
			return written, err
		}
		n, err := s.Conn.Write(b[written:])
		written += n
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !s.blocked.Load() {
			return written, err
		}
	}
}

// SetDeadline does nothing: the socket sets its own deadlines.
func (s *socket) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing: the socket sets its own deadlines.
func (s *socket) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing: the socket sets its own deadlines.
func (s *socket) SetWriteDeadline(time.Time) error { return nil }
