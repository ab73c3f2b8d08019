package services

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// A server takes a second to listen at its port, and many tests start servers at the same time.
func TestAFreePortIsReturnedOnlyOnce(t *testing.T) {
	const n = 500
	given := make(map[int]bool)
	for range n {
		port, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		if given[port] {
			t.Fatalf("port %d was returned twice", port)
		}
		given[port] = true
		if conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("another process could get port %d as well: %v, %v", port, conn, err)
		}
	}
	several, err := freePorts(8)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range several {
		if given[port] {
			t.Errorf("port %d was returned twice", port)
		}
		given[port] = true
	}
}
