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

	"github.com/cdc-relay/cdc-relay/internal/await"
)

// Deaf is an address at which nothing answers: packets that ask for a connection are dropped, as by a machine that is
// switched off or behind a firewall, and the kernel of who asks sends them again ever more seldom.
type Deaf struct {
	file    *os.File // the listening socket
	port    int      // on 127.0.0.1
	callers []net.Conn
}

// NewDeaf makes a listener with no place for another connection, until the test ends.
func NewDeaf(t testing.TB) *Deaf {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &Deaf{file: os.NewFile(uintptr(fd), "deaf")}
	t.Cleanup(d.close)
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0))
	if err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	d.port = name.(*syscall.SockaddrInet4).Port
	const most, timeout = 16, 100 * time.Millisecond
	for range most {
		conn, err := net.DialTimeout("tcp", d.Addr(), timeout)
		if err != nil {
			return d // there is no place any more
		}
		d.callers = append(d.callers, conn)
	}
	t.Fatalf("%s still takes connections", d.Addr())
	return nil
}

// Addr is its host:port.
func (d *Deaf) Addr() string { return fmt.Sprintf("127.0.0.1:%d", d.port) }

// AwaitAttempts waits until so many connections have been asked for.
func (d *Deaf) AwaitAttempts(t testing.TB, n int) {
	t.Helper()
	attempts := map[string]bool{} // by the caller's address
	deadline := time.Now().Add(await.Hang())
	for tick := time.Tick(10 * time.Millisecond); len(attempts) < n; <-tick {
		if time.Now().After(deadline) {
			t.Fatalf("%d attempts to connect, want %d", len(attempts), n)
		}
		sockets, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		const synSent = "02" // proc(5): local address, remote address and state follow the number of the line
		for line := range strings.Lines(string(sockets)) {
			if f := strings.Fields(line); f[2] == d.asInProc() && f[3] == synSent {
				attempts[f[1]] = true
			}
		}
	}
}

// asInProc is the address as /proc/net/tcp writes it: hexadecimal, the bytes of 127.0.0.1 in the order of this machine.
func (d *Deaf) asInProc() string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32([]byte{127, 0, 0, 1}), d.port)
}

// Hear accepts connections from now on, and joins each to target, a host:port. A proxy that is given the same address
// would not do: its socket would be another.
func (d *Deaf) Hear(t testing.TB, target string) {
	t.Helper()
	listener, err := net.FileListener(d.file)
	if err != nil {
		t.Fatal(err)
	}
	proxy := newProxy(listener.(*net.TCPListener), target, nil)
	t.Cleanup(proxy.Close)
}

func (d *Deaf) close() {
	for _, caller := range d.callers {
		_ = caller.Close()
	}
	_ = d.file.Close()
}
