// Package pgdial bounds how long connecting to Postgres may take, and how long a connection may
// go without an acknowledgement.
package pgdial

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// loginTimeout is how long connecting to one host may take, with TLS and login.
	loginTimeout = 5 * time.Second
	// acceptTimeout is how long one host has to accept the connection. The next host of the URL, or
	// the next address of a name, is tried only then: the first may be a machine that is gone. The
	// kernel sends its second SYN after one second, so a host that returns is noticed within that time.
	acceptTimeout = 2 * time.Second
	// userTimeout ends a connection whose bytes the other kernel does not acknowledge. Kernels resend
	// at growing intervals, so the connection could come back as late again as the network was down.
	// A server that is busy still acknowledges.
	userTimeout = 5 * time.Second
)

// Limit sets these timeouts on the connections of config. connect_timeout of the URL replaces the
// first two.
func Limit(config *pgconn.Config) {
	accept := config.ConnectTimeout
	if accept == 0 {
		config.ConnectTimeout, accept = loginTimeout, acceptTimeout
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, accept)
		defer cancel()
		conn, err := dial(ctx, network, address)
		if err == nil {
			setUserTimeout(conn, userTimeout)
		}
		return conn, err
	}
}
