package amqpdial

import (
	"context"
	"net"
	"time"
)

// HeadStart is how long an address or a node may take to answer before the next one is tried as well. Otherwise one
// that is frozen or cut off would delay all until its time limit.
const HeadStart = 300 * time.Millisecond

// Race tries the first of n, and the next one whenever one has failed or has had its head start. An attempt that is
// only slow is not ended, so slow ones still win. It returns the number of the first that succeeds, or -1, and the
// errors of all that have begun, by number. Those that succeed later are dropped; nothing runs after its return.
func Race[T any](
	ctx context.Context, n int, headStart time.Duration, try func(context.Context, int) (T, error), drop func(T),
) (first T, number int, errs []error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type end struct {
		what   T
		number int
		err    error
	}
	ended := make(chan end)
	running := 0
	defer func() {
		for cancel(); running > 0; running-- {
			if other := <-ended; other.err == nil {
				drop(other.what)
			}
		}
	}()
	for len(errs) < n || running > 0 {
		var next <-chan time.Time // nil if all have begun
		if begun := len(errs); begun < n {
			errs = append(errs, nil)
			running++
			go func() {
				what, err := try(ctx, begun)
				ended <- end{what, begun, err}
			}()
			next = time.After(headStart)
		}
		select {
		case <-next:
		case e := <-ended:
			if running--; e.err == nil {
				return e.what, e.number, errs
			}
			errs[e.number] = e.err
		}
	}
	return first, -1, errs
}

// DialHost connects to the first address of a host that accepts, each within the time limit. Go's dialer would give the
// whole limit to an address that is silent.
func DialHost(ctx context.Context, network, address string, accept time.Duration) (net.Conn, error) {
	dialer := net.Dialer{Timeout: accept}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil || len(found) == 1 {
		return dialer.DialContext(ctx, network, address) // its errors name the host
	}
	headStart := HeadStart
	if deadline, ok := ctx.Deadline(); ok { // the last address needs time, too
		headStart = min(headStart, time.Until(deadline)/time.Duration(2*len(found)))
	}
	conn, number, errs := Race(ctx, len(found), headStart, func(ctx context.Context, i int) (net.Conn, error) {
		return dialer.DialContext(ctx, network, net.JoinHostPort(found[i], port))
	}, func(other net.Conn) { _ = other.Close() })
	if number < 0 {
		return nil, errs[len(errs)-1]
	}
	return conn, nil
}
