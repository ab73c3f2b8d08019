//go:build !linux

package hedge

import (
	"net"
	"time"
)

// limitUnacknowledged does nothing: there the connection ends when the kernel gives up.
func limitUnacknowledged(net.Conn, time.Duration) {}
