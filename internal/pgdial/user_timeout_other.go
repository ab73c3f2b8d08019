//go:build !linux

package pgdial

import (
	"net"
	"time"
)

// setUserTimeout does nothing: the connection ends when the kernel gives up.
func setUserTimeout(net.Conn, time.Duration) {}
