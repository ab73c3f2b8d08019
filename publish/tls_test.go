package publish

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/services"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// authority is a private CA of one test; its files are readable by the broker's user.
type authority struct {
	t           *testing.T
	folder      string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, folder: t.TempDir()}
	for _, folder := range []string{a.folder, filepath.Dir(a.folder)} {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a.key = a.newKey()
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a private CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.sign("ca", a.certificate, a.key)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

// issue writes a certificate for a server of that name, or a client, and its key.
func (a *authority) issue(name string) {
	a.t.Helper()
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: a.certificate.NotBefore, NotAfter: a.certificate.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.sign(name, template, a.newKey())
}

func (a *authority) sign(name string, template *x509.Certificate, key *ecdsa.PrivateKey) {
	a.t.Helper()
	content, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", content)
	a.write(name+".key", "PRIVATE KEY", secret)
}

func (a *authority) write(name, kind string, content []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o644); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.folder, name) }

// tlsBroker has a TLS listener for clients with a certificate of the authority, and its own is for "localhost".
func tlsBroker(t *testing.T, a *authority) (broker *services.RabbitMQ, address url.URL) {
	t.Helper()
	port, err := services.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	broker, err = services.StartRabbitMQ(t.Context(), services.Options{
		Way: services.Local, Private: true, // a container would not see the files
		Log: func(line string) { t.Log(line) },
		Settings: []string{
			"listeners.ssl.1 = 127.0.0.1:" + strconv.Itoa(port),
			"ssl_options.cacertfile = " + a.file("ca.pem"),
			"ssl_options.certfile = " + a.file("localhost.pem"),
			"ssl_options.keyfile = " + a.file("localhost.key"),
			"ssl_options.verify = verify_peer",
			"ssl_options.fail_if_no_peer_cert = true",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return broker, url.URL{
		Scheme: "amqps", User: url.UserPassword("guest", "guest"), Host: "127.0.0.1:" + strconv.Itoa(port), Path: "/",
	}
}

// TestTLS: the URL names the private CA, the client's certificate and the name that the server's is for.
func TestTLS(t *testing.T) {
	authority, stranger := newAuthority(t), newAuthority(t)
	authority.issue("localhost")
	authority.issue("client")
	broker, address := tlsBroker(t, authority)
	q := newAdmin(t, broker.URL("")).queue(services.Name(t), nil)
	right := map[string]string{
		"cacertfile": authority.file("ca.pem"), "server_name_indication": "localhost",
		"certfile": authority.file("client.pem"), "keyfile": authority.file("client.key"),
	}
	with := func(parameter, value string) string {
		query := url.Values{}
		for name, value := range right {
			query.Set(name, value)
		}
		query.Set(parameter, value)
		address := address
		address.RawQuery = query.Encode()
		return address.String()
	}
	for name, one := range map[string]struct{ parameter, value, complaint string }{
		"another authority":   {"cacertfile", stranger.file("ca.pem"), "signed by unknown authority"},
		"another host":        {"server_name_indication", "elsewhere", "not elsewhere"},
		"no such CA file":     {"cacertfile", authority.file("nobody.pem"), "nobody.pem"},
		"no client's":         {"certfile", "", "certificate required"},
		"a file without keys": {"keyfile", authority.file("ca.pem"), "load client certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewAMQP(AMQPConfig{URL: with(one.parameter, one.value), Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, p)
			r.await(t, "complaint", func() bool {
				return len(r.states) > 0 && strings.Contains(r.states[len(r.states)-1].Detail, one.complaint)
			})
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.phase() == Ready {
				t.Error("ready")
			}
		})
	}
	t.Run("all right", func(t *testing.T) {
		r := startAMQP(t, AMQPConfig{URL: with("", "")})
		var k maker
		messages := k.many(500, "", q)
		r.publish(messages...)
		allAre(t, r.awaitResults(t, messages...), outbox.Confirmed)
	})
}

// TestTLSBrokerSilent: the deadlines of a socket hold beneath TLS, too.
func TestTLSBrokerSilent(t *testing.T) {
	authority := newAuthority(t)
	authority.issue("localhost")
	authority.issue("client")
	broker, address := tlsBroker(t, authority)
	q := newAdmin(t, broker.URL("")).queue(services.Name(t), nil)
	address.RawQuery = url.Values{
		"cacertfile": {authority.file("ca.pem")}, "server_name_indication": {"localhost"},
		"certfile": {authority.file("client.pem")}, "keyfile": {authority.file("client.key")},
	}.Encode()
	r := startAMQP(t, AMQPConfig{URL: address.String(), SendTimeout: time.Second})
	var k maker
	for range 2 { // the first goes ahead of the exchange's own channel
		m := k.make("", q, `{}`)
		r.publish(m)
		allAre(t, r.awaitResults(t, m), outbox.Confirmed)
	}
	if err := broker.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	mark := r.mark()
	messages := k.many(200, "", q)
	r.publish(messages...)
	allAre(t, r.awaitResults(t, messages...), outbox.Unknown)
	r.awaitSince(t, mark, Connecting)
	if err := broker.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.awaitPhase(t, Ready)
	more := k.many(200, "", q)
	r.publish(more...)
	allAre(t, r.awaitResults(t, more...), outbox.Confirmed)
}
