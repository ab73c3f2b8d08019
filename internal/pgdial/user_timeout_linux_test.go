package pgdial

import (
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// It does so after TCP_USER_TIMEOUT.
func TestTheKernelEndsAConnectionWithoutAcknowledgements(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	services.Must(t, err)
	defer listener.Close() //nolint:errcheck // the test is over
	config, err := pgconn.ParseConfig("postgres://" + listener.Addr().String())
	services.Must(t, err)
	Limit(config)
	conn, err := config.DialFunc(t.Context(), "tcp", listener.Addr().String())
	services.Must(t, err)
	defer conn.Close() //nolint:errcheck // the test is over
	raw, err := conn.(*net.TCPConn).SyscallConn()
	services.Must(t, err)
	var limit int
	if e := raw.Control(func(fd uintptr) { limit, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if limit != int(userTimeout.Milliseconds()) {
		t.Errorf("%d ms", limit)
	}
}
