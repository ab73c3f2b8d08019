package services

import (
	"context"
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

// resolve gives every name without a line in the hosts file these IPv4 addresses, in this process and until the test
// ends. So the test must not run in parallel with others.
func resolve(t testing.TB, addresses ...string) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	Must(t, err)
	go answerQuestions(server, addresses)
	usual := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = usual
		_ = server.Close()
	})
}

// answerQuestions is a name server (RFC 1035) until the connection is closed.
func answerQuestions(server net.PacketConn, addresses []string) {
	const header, typeA = 12, 1
	query := make([]byte, 1<<10)
	for {
		n, from, err := server.ReadFrom(query)
		if err != nil {
			return
		}
		end := header
		for end < n && query[end] != 0 { // the labels of the name
			end += 1 + int(query[end])
		}
		end += 5 // the last label, type and class
		if end > n {
			continue
		}
		answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[header:end]...)
		if query[end-3] == typeA {
			answer[7] = byte(len(addresses))
			for _, address := range addresses {
				answer = append(answer, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4)
				answer = append(answer, net.ParseIP(address).To4()...)
			}
		}
		_, _ = server.WriteTo(answer, from)
	}
}
