package store

import (
	"context"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/rawnet"
)

// sockets are the open connections of a pool, so that they can be closed at once. pgconn waits up to 15 seconds for a
// server that does not answer (pgconn.go, asyncClose and Close).
type sockets struct {
	mu struct {
		sync.Mutex
		closed bool
		open   map[*socket]struct{}
	}
}

type socket struct {
	net.Conn
	owner *sockets
}

func newSockets() *sockets {
	s := &sockets{}
	s.mu.open = make(map[*socket]struct{})
	return s
}

// dialer returns the pgconn.DialFunc of one connection of the pool. It fails after closeAll.
func (s *sockets) dialer(dialServer pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		s.mu.Lock()
		closed := s.mu.closed
		s.mu.Unlock()
		if closed {
			return nil, net.ErrClosed
		}
		conn, err := dialServer(ctx, network, address)
		if err != nil {
			return nil, err
		}
		one := &socket{Conn: rawnet.Wrap(conn), owner: s}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.closed {
			_ = conn.Close()
			return nil, net.ErrClosed
		}
		s.mu.open[one] = struct{}{}
		return one, nil
	}
}

// Close implements net.Conn.
func (c *socket) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.mu.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

func (s *sockets) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.closed = true
	for c := range s.mu.open {
		_ = c.Conn.Close()
	}
}
