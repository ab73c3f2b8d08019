package problem

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"regexp"
	"strings"
)

// TLS names what hints about certificates of one server refer to.
type TLS struct {
	Server string // Postgres or RabbitMQ
	InURL  string // how the setting with the address is called
	// Authority and Client are the parameters of the address for the server's authority and the client's certificate.
	Authority, Client string
	// Name is the parameter for another name in the server's certificate; "": there is none. Port is the usual one.
	Name, Port string
}

// Hint returns what cures an error of TLS, or "" for another one.
func (t TLS) Hint(err error) string {
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return "# check that this file exists and that the relay may read it"
	case errors.As(err, &authority):
		return "# set the authority of " + t.Server + "'s certificate " + t.InURL + ": " + t.Authority
	case errors.As(err, &hostname):
		if c := hostname.Certificate; c != nil && len(c.DNSNames)+len(c.IPAddresses) == 0 {
			return "# give " + t.Server + " a certificate with the host as a subject alternative name"
		}
		if t.Name != "" {
			return "# use a host of " + t.Server + "'s certificate " + t.InURL + ", or add " + t.Name
		}
		return "# use a host of " + t.Server + "'s certificate " + t.InURL
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "# renew " + t.Server + "'s certificate and reload " + t.Server +
			", or correct the clock of this machine"
	case errors.As(err, &invalid):
		return "# give " + t.Server + " another certificate, for servers, of an authority that may sign it"
	case errors.As(err, &record):
		return "# this port speaks no TLS: use the port for TLS, as a rule " + t.Port + ", " + t.InURL
	}
	const unread = "failed to parse certificate from server: " // crypto/tls has no type for it
	if _, cause, found := strings.Cut(err.Error(), unread); found {
		fix := "# give " + t.Server + " another certificate: Go reads none with this mistake"
		if strings.Contains(cause, "negative serial number") {
			fix += "; or, until then: export GODEBUG=x509negativeserial=1"
		}
		return fix
	}
	// The server ends the handshake with an alert, whose type crypto/tls does not export.
	alert := regexp.MustCompile(`remote error: tls: (.*)`).FindStringSubmatch(err.Error())
	switch {
	case alert == nil:
		return ""
	case strings.Contains(alert[1], "certificate"):
		return "# use a client certificate that " + t.Server +
			" accepts, of an authority that it trusts and not expired, " + t.InURL + ": " + t.Client
	}
	return "# " + t.Server + " rejected the TLS handshake: it must accept TLS 1.2 or later; its log says more"
}
