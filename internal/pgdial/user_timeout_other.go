//go:build !linux

package pgdial

import (
	"net"
	"time"
)

// EndIfSilent does nothing: the connection ends when the kernel gives up.
func EndIfSilent(net.Conn, time.Duration) {}
