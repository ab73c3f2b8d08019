//go:build !linux

package rawnet

import "net"

func wrap(conn net.Conn) net.Conn { return conn }
