package amqp

import (
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/certs"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// tlsBroker accepts clients with a certificate of the authority; its own certificate is for "localhost".
func tlsBroker(t *testing.T, a *certs.Authority) (broker *services.RabbitMQ, address url.URL) {
	t.Helper()
	services.Thorough(t, "starts its own server")
	broker, host := services.TLSRabbitMQ(t, services.Certificate{CA: a.File("ca.pem"), Cert: a.File("localhost.pem"), Key: a.File("localhost.key")})
	return broker, url.URL{Scheme: "amqps", User: url.UserPassword("guest", "guest"), Host: host, Path: "/"}
}

// Both subtests use one broker.
func TestTLSToTheBroker(t *testing.T) {
	t.Parallel()
	authority := certs.NewAuthority(t)
	authority.Issue("localhost")
	authority.Issue("client")
	broker, address := tlsBroker(t, authority)
	t.Run("settings of the URL", func(t *testing.T) { tlsByURL(t, authority, broker, address) })
	t.Run("login by certificate", func(t *testing.T) { tlsLogin(t, authority, broker, address) })
	t.Run("the broker is silent", func(t *testing.T) { tlsBrokerSilent(t, authority, broker, address) })
}

// certified returns the parameters of a URL for a client with a certificate of the authority.
func certified(authority *certs.Authority) url.Values {
	return url.Values{
		"cacertfile": {authority.File("ca.pem")}, "server_name_indication": {"localhost"},
		"certfile": {authority.File("client.pem")}, "keyfile": {authority.File("client.key")},
	}
}

// tlsByURL: the URL names the private CA, the client's certificate and the name in the server's certificate.
func tlsByURL(t *testing.T, authority *certs.Authority, broker *services.RabbitMQ, address url.URL) {
	stranger := certs.NewAuthority(t)
	q := newAdmin(t, broker.URL("")).queue(services.Name(t), nil)
	with := func(parameter, value string) string {
		query := certified(authority)
		if parameter != "" {
			query.Set(parameter, value)
		}
		if parameter == "certfile" {
			query.Del("certfile")
			query.Del("keyfile")
		}
		address := address
		address.RawQuery = query.Encode()
		return address.String()
	}
	for name, one := range map[string]struct{ parameter, value, complaint string }{
		"another authority":   {"cacertfile", stranger.File("ca.pem"), "signed by unknown authority"},
		"another host":        {"server_name_indication", "elsewhere", "not elsewhere"},
		"no such CA file":     {"cacertfile", authority.File("nobody.pem"), "nobody.pem"},
		"no client's":         {"certfile", "", "RabbitMQ may ask for a client certificate"},
		"a file without keys": {"keyfile", authority.File("ca.pem"), "keyfile="},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(Config{URL: with(one.parameter, one.value), Logger: slog.New(slog.DiscardHandler)})
			must(t, err)
			r := start(t, p)
			r.Await(t, "complaint", func() bool {
				return len(r.States) > 0 && strings.Contains(r.States[len(r.States)-1].Detail, one.complaint)
			})
			r.Mu.Lock()
			defer r.Mu.Unlock()
			if r.Phase() == publish.Ready {
				t.Error("ready")
			}
		})
	}
	t.Run("valid certificates", func(t *testing.T) {
		r := startAMQP(t, Config{URL: with("", "")})
		var k publishtest.Maker
		messages := k.Many(500, "", q)
		publishtest.AllAre(t, r.Answers(t, messages...), outbox.Confirmed)
	})
}

// tlsLogin: with auth_mechanism=external, the name in the client's certificate is the user.
func tlsLogin(t *testing.T, authority *certs.Authority, broker *services.RabbitMQ, address url.URL) {
	if err := broker.EnablePlugin(t.Context(), "rabbitmq_auth_mechanism_ssl"); err != nil {
		t.Skip(err)
	}
	const settings = `ok = application:set_env(rabbit, auth_mechanisms, ['PLAIN', 'AMQPLAIN', 'EXTERNAL']),
		ok = application:set_env(rabbit, ssl_cert_login_from, common_name).`
	ctl(t, broker, "eval", settings)
	ctl(t, broker, "add_user", "client", "unknown")
	ctl(t, broker, "set_permissions", "client", ".*", ".*", ".*")
	q := newAdmin(t, broker.URL("")).queue(services.Name(t), nil)
	address.User = nil
	query := certified(authority)
	query.Set("auth_mechanism", "external")
	address.RawQuery = query.Encode()
	r := startAMQP(t, Config{URL: address.String()})
	var k publishtest.Maker
	r.publishUntilConfirmed(t, k.Many(100, "", q)...)
}

// tlsBrokerSilent: the deadlines of a socket also work below TLS.
func tlsBrokerSilent(t *testing.T, authority *certs.Authority, broker *services.RabbitMQ, address url.URL) {
	q := newAdmin(t, broker.URL("")).queue(services.Name(t), nil)
	address.RawQuery = certified(authority).Encode()
	r := startAMQP(t, Config{URL: address.String(), SendTimeout: await.Scaled(time.Second)})
	var k publishtest.Maker
	for range 2 { // the first opens the lane
		r.publishUntilConfirmed(t, k.Make("", q, `{}`))
	}
	must(t, broker.Pause(t.Context()))
	mark := r.Mark()
	messages := k.Many(200, "", q)
	publishtest.AllAre(t, r.Answers(t, messages...), outbox.Unknown)
	r.AwaitSince(t, mark, publish.Connecting)
	must(t, broker.Resume(t.Context()))
	r.publishUntilConfirmed(t, k.Many(200, "", q)...)
}
