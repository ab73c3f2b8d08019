package services

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// The ports are below the ranges that systems use for outgoing connections. Otherwise a client that keeps dialling the
// port of a stopped server could get that port as its own and connect to itself.
const (
	firstPort = 20000
	lastPort  = 31999
)

// freePort returns a loopback port on which nothing listens. It is reserved until the process ends.
func freePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

func freePorts(n int) (ports []int, err error) {
	for range 200 * n {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if isFree(port) && reserve(port) {
			ports = append(ports, port)
		}
	}
	return nil, fmt.Errorf("no %d free loopback ports between %d and %d", n, firstPort, lastPort)
}

func isFree(port int) bool {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	return err == nil && listener.Close() == nil
}

// reserve keeps other processes with this package from using a port while nothing listens there. Otherwise a server
// could find its port taken, and its clients would talk to another server. It binds the UDP port of the same number and
// never closes it.
func reserve(port int) bool {
	sign, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return false
	}
	raw, err := sign.SyscallConn()
	var failed error
	if err == nil {
		err = raw.Control(func(descriptor uintptr) {
			syscall.ForkLock.RLock()
			defer syscall.ForkLock.RUnlock()
			var kept int
			if kept, failed = syscall.Dup(int(descriptor)); failed == nil {
				syscall.CloseOnExec(kept)
			}
		})
	}
	return errors.Join(err, failed, sign.Close()) == nil
}

// FreePort returns a loopback port on which nothing listens, from the range of the servers' ports. No other process
// gets it until this one ends.
func FreePort() (int, error) { return freePort() }
