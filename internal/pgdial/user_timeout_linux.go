package pgdial

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7), which package syscall does not define.
const tcpUserTimeout = 0x12

// EndIfSilent sets TCP_USER_TIMEOUT. It does nothing if conn is not a TCP connection or the kernel rejects it.
func EndIfSilent(conn net.Conn, limit time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds()))
		})
	}
}
