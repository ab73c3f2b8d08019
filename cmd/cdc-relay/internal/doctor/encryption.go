package doctor

import (
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

// encryption is how a connection to a server is protected.
type encryption struct {
	tls *tls.ConnectionState // nil: it is not encrypted
	// local: it does not leave this machine.
	local bool
	// verified: the server proved its name.
	verified bool
}

// encryptionOf returns how a connection of the database is protected.
func encryptionOf(conn net.Conn, verified bool) encryption {
	e := encryption{verified: verified}
	switch address := conn.RemoteAddr().(type) {
	case *net.UnixAddr:
		e.local = true
	case *net.TCPAddr:
		e.local = address.IP.IsLoopback()
	}
	if encrypted, is := conn.(*tls.Conn); is {
		state := encrypted.ConnectionState()
		e.tls = &state
	}
	return e
}

// soonExpired is how long before the expiry of a certificate check warns.
const soonExpired = 30 * 24 * time.Hour

// judge checks a connection to a server. Choose says how TLS is chosen.
func (e encryption) judge(c *chart, server string, choose fix, now time.Time) {
	switch {
	case e.tls == nil && e.local:
		c.ok("tls", "none; the connection does not leave this machine")
	case e.tls == nil:
		c.warn("tls", choose, "none: password and messages cross the network in clear")
	case len(e.tls.PeerCertificates) > 0:
		cert := e.tls.PeerCertificates[0]
		says := fmt.Sprintf("%s, certificate of %s, valid until %s",
			tls.VersionName(e.tls.Version), cert.Subject.CommonName, cert.NotAfter.Format(time.DateOnly))
		if !e.verified {
			says += ", which is not verified"
		}
		if left := cert.NotAfter.Sub(now); left < soonExpired && e.verified {
			c.warn("tls", remark("# renew the certificate of %s", server), "%s: for %s more", says, span(max(left, 0)))
			return
		}
		c.ok("tls", "%s", says)
	default:
		c.ok("tls", "%s", tls.VersionName(e.tls.Version))
	}
}
