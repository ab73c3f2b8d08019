package services

import (
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
	for range 200 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free loopback port between %d and %d", firstPort, lastPort)
}
