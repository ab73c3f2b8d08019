// Package rawnet makes the reads and writes of a TCP connection cheaper for a process
// that is idle between messages.
//
// The net package announces each system call to Go's scheduler, in case it blocks. Those
// of a socket that the network poller watches do not block, but the announcement wakes the
// scheduler's monitor thread, which then looks around every 20 µs until all is idle again:
// about half of the context switches that a relay makes for a message that comes alone.
package rawnet

import (
	"context"
	"net"
)

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// Dial has what dial opens wrapped by Wrap.
func Dial(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return Wrap(conn), nil
	}
}

// Wrap returns conn with cheaper Read and Write, or as it is where that cannot be had: on
// other systems than Linux, and if it is no TCP connection. Deadlines and Close work as
// before. One goroutine at a time may read, and one may write; closing the result closes conn.
func Wrap(conn net.Conn) net.Conn { return wrap(conn) }
