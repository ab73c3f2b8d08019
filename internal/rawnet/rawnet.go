// Package rawnet makes the reads and writes of a TCP connection cheaper for a process
// that is idle between messages.
//
// The net package announces each system call to Go's scheduler, in case it blocks. Calls
// on a socket of the network poller never block. But the announcement wakes the scheduler's
// monitor thread, which then polls every 20 µs until the process is idle: about half of the
// context switches that a relay makes for a single message.
package rawnet

import (
	"context"
	"net"
)

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dial returns a dial function whose connections are wrapped by Wrap.
func Dial(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return Wrap(conn), nil
	}
}

// Wrap returns conn with cheaper Read and Write. It returns conn unchanged on systems other than Linux and if it is not
// a TCP connection. Deadlines and Close work as before. One goroutine at a time may read, and one may write. Closing
// the result closes conn.
func Wrap(conn net.Conn) net.Conn { return wrap(conn) }
