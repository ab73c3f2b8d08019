package doctor_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/doctor"
	"github.com/cdc-relay/cdc-relay/internal/services"
)

// certificate writes one that signs itself, for a host, and its key.
func certificate(t *testing.T, host string) (certificate, key string) {
	t.Helper()
	folder := t.TempDir()
	for _, path := range []string{folder, filepath.Dir(folder)} { // the broker is another user
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(73 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	content, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(folder, "certificate.pem"), filepath.Join(folder, "key.pem")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: content}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

func TestABrokerWithTLS(t *testing.T) {
	file, key := certificate(t, "mq.example")
	var ports [2]string
	for i := range ports {
		port, err := services.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	broker, err := services.StartRabbitMQ(t.Context(), services.Options{
		Way: services.Local, Private: true, // a container would not see the files
		Settings: []string{
			"listeners.ssl.1 = 127.0.0.1:" + ports[0], "ssl_options.certfile = " + file, "ssl_options.keyfile = " + key,
			"management.ssl.port = " + ports[1], "management.ssl.certfile = " + file, "management.ssl.keyfile = " + key,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := broker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	p := healthy(t, services.SharedPostgres(t))
	p.ManagementURL = "https://127.0.0.1:" + ports[1]
	at := func(query url.Values) {
		u := url.URL{Scheme: "amqps", User: url.UserPassword("guest", "guest"), Host: "127.0.0.1:" + ports[0], Path: "/", RawQuery: query.Encode()}
		p.AMQPURL = u.String()
	}
	at(nil)
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "reachable", "server_name_indication=")
	at(url.Values{"server_name_indication": {"mq.example"}})
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "reachable", "unknown authority", "?cacertfile=")
	at(url.Values{"cacertfile": {file}, "server_name_indication": {"mq.example"}})
	r := p.examine()
	r.want(doctor.Warning, doctor.RabbitMQ, "tls", "TLS 1.3, certificate of mq.example", "for 3 days more", "renew")
	r.want(doctor.OK, doctor.RabbitMQ, "management", "https://")
	r.wantOthersOK("tls")
}

// Servers that hold connections open and say nothing: the examination ends all the same.
func TestServersThatAreSilent(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	proxied := func(address string) (string, *services.Proxy) {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		proxy := services.NewProxy(t, u.Host)
		return throughPort(t, address, proxy.Addr()), proxy
	}
	database, silentDatabase := proxied(p.url)
	broker, silentBroker := proxied(p.AMQPURL)
	api, silentAPI := proxied(p.ManagementURL)
	p.as(database)
	p.AMQPURL, p.ManagementURL = broker, api
	p.examine().wantOthersOK()

	p.SetPatience(2 * time.Second)
	silentAPI.BlackHole(services.Downstream)
	p.insert("amq.topic", "k")
	p.examine().want(doctor.Warning, doctor.RabbitMQ, "management", "rabbitmq-plugins enable")
	silentDatabase.BlackHole(services.Downstream)
	silentBroker.BlackHole(services.Downstream)
	r := p.examine()
	r.want(doctor.Problem, doctor.Postgres, "reachable")
	r.want(doctor.Problem, doctor.RabbitMQ, "reachable")
}
