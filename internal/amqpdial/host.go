package amqpdial

import (
	"context"
	"net"
	"time"
)

// DialHost connects to the first address of a host that accepts, each within the time limit. The next address is tried
// as well after a head start: Go's dialer would give the whole limit to an address that is silent.
func DialHost(ctx context.Context, network, address string, accept time.Duration) (net.Conn, error) {
	const headStart = 300 * time.Millisecond
	dialer := net.Dialer{Timeout: accept}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil || len(found) == 1 {
		return dialer.DialContext(ctx, network, address) // its errors name the host
	}
	step := headStart
	if deadline, ok := ctx.Deadline(); ok { // the last address needs time, too
		step = min(step, time.Until(deadline)/time.Duration(2*len(found)))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		conn net.Conn
		err  error
	}
	ended := make(chan end, len(found))
	begun, failed := 0, 0
	for failed < len(found) {
		var next <-chan time.Time
		if begun < len(found) {
			one := net.JoinHostPort(found[begun], port)
			go func() {
				conn, err := dialer.DialContext(ctx, network, one)
				ended <- end{conn, err}
			}()
			begun++
			next = time.After(step)
		}
		select {
		case <-next:
		case e := <-ended:
			if failed, err = failed+1, e.err; err != nil {
				continue
			}
			cancel()
			for range begun - failed {
				if other := <-ended; other.conn != nil {
					_ = other.conn.Close()
				}
			}
			return e.conn, nil
		}
	}
	return nil, err
}
