package services

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are taken from below the ranges that systems use for outgoing connections. A client that keeps dialling the
// port of a stopped server on the same machine could otherwise be given that very port as its own and connect to itself.
const (
	firstPort = 20000
	lastPort  = 31999
)

// freePort returns a loopback port on which nothing listens.
func freePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

// freePorts returns n different loopback ports on which nothing listens.
func freePorts(n int) (ports []int, err error) {
	var held []net.Listener // until all are found, so that none is found twice
	defer func() {
		for _, listener := range held {
			err = errors.Join(err, listener.Close())
		}
	}()
	for range 200 * n {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err == nil {
			held, ports = append(held, listener), append(ports, port)
		}
	}
	return nil, fmt.Errorf("no %d free loopback ports between %d and %d", n, firstPort, lastPort)
}

// FreePort returns a loopback port on which nothing listens, from the same range as the servers' ports.
func FreePort() (int, error) { return freePort() }
