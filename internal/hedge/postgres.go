package hedge

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// connectTimeout is how long a connection to one host of Postgres may take, with its login.
	connectTimeout = 5 * time.Second
	// hostTimeout is how long it may take until the host accepts it. A URL may name several hosts, or a name have several
	// addresses, and the next is tried only then: the first may be that of a machine that is gone.
	hostTimeout = 2 * time.Second
	// unacknowledged is how long sent bytes may stay without an acknowledgement by the other side's kernel, before the
	// connection counts as lost: where packets are dropped, the kernels try again ever more seldom, and the connection
	// would come back up to as long after the network as that was away. A server that is busy acknowledges all the same.
	unacknowledged = 5 * time.Second
)

// Postgres has the connections of config come about in spite of packets that are dropped, and bounds what each host may
// take, unless connect_timeout says so already. Without a bound a host that does not answer would hide the next.
func Postgres(config *pgconn.Config) {
	limit := config.ConnectTimeout
	if limit == 0 {
		config.ConnectTimeout, limit = connectTimeout, hostTimeout
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, err := First(ctx, Every, func(ctx context.Context) (net.Conn, error) {
			return dial(ctx, network, address)
		}, func(late net.Conn) { _ = late.Close() })
		if err == nil {
			limitUnacknowledged(conn, unacknowledged)
		}
		return conn, err
	}
}
