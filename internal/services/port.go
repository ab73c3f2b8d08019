package services

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// Ports are taken from below the ranges that systems use for outgoing connections. A client that keeps dialling the
// port of a stopped server on the same machine could otherwise be given that very port as its own and connect to itself.
const (
	firstPort = 20000
	lastPort  = 31999
)

// freePort returns a loopback port on which nothing listens. It is this process's until the process ends.
func freePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// freePorts returns n different ones.
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

// reserve keeps other processes that use this package from a port on which nothing may listen for a while: a server that
// finds its port taken ends, and its clients would talk to the other one. The sign is that the UDP port of the same
// number is taken, by a descriptor that is never closed.
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

// FreePort returns a loopback port on which nothing listens, from the same range as the servers' ports. No other process
// is given it until this one ends.
func FreePort() (int, error) { return freePort() }
