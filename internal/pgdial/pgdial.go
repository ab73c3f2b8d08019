// Package pgdial limits the time to connect to Postgres, and the time that a connection may go without an
// acknowledgement.
package pgdial

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// loginTimeout is for one host, with TLS and login.
	loginTimeout = 5 * time.Second
	// acceptTimeout is how long one host may take to accept the connection. Only then is the next host or address
	// tried. The kernel resends its SYN after one second, so it notices within this time that a host is back.
	acceptTimeout = 2 * time.Second
	// userTimeout ends a connection if the other kernel acknowledges nothing. Kernels resend at growing intervals:
	// after an outage, a connection could take as long again to recover. A busy server still acknowledges.
	userTimeout = 5 * time.Second
)

// Limit sets these timeouts on the connections of config. A connect_timeout in the URL replaces the first two.
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
			EndIfSilent(conn, userTimeout)
		}
		return conn, err
	}
}
