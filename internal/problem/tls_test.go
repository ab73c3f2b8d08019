package problem

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
)

func TestErrorsOfCertificatesAreToldApart(t *testing.T) {
	server := TLS{Server: "Postgres", InURL: "in URL", Authority: "sslrootcert=FILE", Client: "sslcert=FILE", Port: "5432"}
	alert := func(text string) error { return &net.OpError{Op: "remote error", Err: errors.New("tls: " + text)} }
	for _, test := range []struct {
		err  error
		want string
	}{
		{x509.CertificateInvalidError{Reason: x509.Expired}, "# renew Postgres's certificate"},
		{x509.CertificateInvalidError{Reason: x509.IncompatibleUsage}, "# give Postgres another certificate"},
		{x509.UnknownAuthorityError{}, "# set the authority of Postgres's certificate in URL: sslrootcert=FILE"},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, "# give Postgres a certificate with the host"},
		{x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"db"}}}, "# use a host of Postgres's certificate"},
		{tls.RecordHeaderError{}, "# this port speaks no TLS"},
		{errors.New("tls: failed to parse certificate from server: x509: negative serial number"), "# give Postgres another certificate: Go reads none with this mistake; or, until then: export GODEBUG=x509negativeserial=1"},
		{errors.New("tls: failed to parse certificate from server: x509: malformed tbs certificate"), "# give Postgres another certificate: Go reads none with this mistake"},
		{alert("expired certificate"), "# use a client certificate that Postgres accepts"},
		{alert("certificate required"), "# use a client certificate that Postgres accepts"},
		{alert("unknown certificate authority"), "# use a client certificate that Postgres accepts"},
		{alert("protocol version not supported"), "# Postgres rejected the TLS handshake"},
		{errors.New("connection refused"), ""},
	} {
		if got := server.Hint(fmt.Errorf("connect: %w", test.err)); !strings.HasPrefix(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%v: got %q, want %q", test.err, got, test.want)
		}
	}
}
