package services

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// Deaf is an address where nothing answers: the kernel drops connection requests, as for a machine that is off or
// behind a firewall. The client's kernel resends them at growing intervals.
type Deaf struct {
	file    *os.File // the listening socket
	port    int      // on 127.0.0.1
	callers []net.Conn
}

// NewDeaf listens with a full backlog until the test ends.
func NewDeaf(t testing.TB) *Deaf {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	Must(t, err)
	d := &Deaf{file: os.NewFile(uintptr(fd), "deaf")}
	t.Cleanup(d.close)
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0))
	Must(t, err)
	name, err := syscall.Getsockname(fd)
	Must(t, err)
	d.port = name.(*syscall.SockaddrInet4).Port
	const most, timeout = 16, 100 * time.Millisecond
	for range most {
		conn, err := net.DialTimeout("tcp", d.Addr(), timeout)
		if err != nil {
			return d // the backlog is full
		}
		d.callers = append(d.callers, conn)
	}
	t.Fatalf("%s still takes connections", d.Addr())
	return nil
}

// Addr returns host:port.
func (d *Deaf) Addr() string { return fmt.Sprintf("127.0.0.1:%d", d.port) }

// AwaitAttempts waits until n connections have been requested.
func (d *Deaf) AwaitAttempts(t testing.TB, n int) {
	t.Helper()
	attempts := map[string]bool{} // by the client's address
	deadline := time.Now().Add(await.Hang())
	for tick := time.Tick(10 * time.Millisecond); len(attempts) < n; <-tick {
		if time.Now().After(deadline) {
			t.Fatalf("%d attempts to connect, want %d", len(attempts), n)
		}
		sockets, err := os.ReadFile("/proc/net/tcp")
		Must(t, err)
		const synSent = "02" // proc(5): local address, remote address and state follow the number of the line
		for line := range strings.Lines(string(sockets)) {
			if f := strings.Fields(line); f[2] == d.asInProc() && f[3] == synSent {
				attempts[f[1]] = true
			}
		}
	}
}

// asInProc returns the address as in /proc/net/tcp: hexadecimal, with the bytes of 127.0.0.1 in this machine's order.
func (d *Deaf) asInProc() string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32([]byte{127, 0, 0, 1}), d.port)
}

// Hear accepts connections from now on, and forwards each to target, a host:port. A separate proxy at this address
// would not work: pending requests belong to this socket.
func (d *Deaf) Hear(t testing.TB, target string) {
	t.Helper()
	listener, err := net.FileListener(d.file)
	Must(t, err)
	proxy := newProxy(listener.(*net.TCPListener), target, nil)
	t.Cleanup(proxy.Close)
}

// Named returns host:port of a name whose first address is deaf, and whose second one forwards to target. The
// test must not run in parallel with others.
func (d *Deaf) Named(t testing.TB, target string) string {
	t.Helper()
	second := net.IPv4(127, 0, 0, 2)
	resolve(t, "127.0.0.1", second.String()) // before the proxy dials
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: second, Port: d.port})
	Must(t, err)
	proxy := newProxy(listener, target, nil)
	t.Cleanup(proxy.Close)
	return fmt.Sprintf("server.test:%d", d.port)
}

func (d *Deaf) close() {
	for _, caller := range d.callers {
		_ = caller.Close()
	}
	_ = d.file.Close()
}
