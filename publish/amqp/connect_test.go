package amqp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/certs"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestNodesThatFailedLastAreTriedLast(t *testing.T) {
	all, err := amqpdial.Parse("amqp://a,b,c,d")
	must(t, err)
	known := make(nodes)
	addresses := func() (hosts string) {
		for _, node := range known.order(all) {
			hosts += node.URI.Host
		}
		return hosts
	}
	known.failed(all[2])
	known[all[1].Address()] = time.Now().Add(-time.Hour)
	seen := make(map[string]bool)
	for range 200 { // each of two equally likely orders is missing once in 2^199 runs
		seen[addresses()] = true
	}
	if len(seen) != 2 || !seen["adbc"] || !seen["dabc"] {
		t.Errorf("the orders are %v, want a and d in any order, b, c", seen)
	}
	delete(known, all[2].Address())
	known.failed(all[0])
	known.failed(all[3])
	if order := addresses(); !strings.HasPrefix(order, "cb") {
		t.Errorf("the order is %s: c has accepted, and b failed an hour ago", order)
	}
}

// records is the log of a publisher.
type records struct{ publishtest.Buffer }

func (r *records) connected(t *testing.T) (last struct {
	Address  string
	Attempts int
	Failed   string
},
) {
	t.Helper()
	for _, line := range r.Lines() {
		if strings.Contains(line, `"broker_connected"`) {
			must(t, json.Unmarshal([]byte(line), &last))
		}
	}
	return last
}

func withNodes(t *testing.T, raw string, hosts ...string) string {
	t.Helper()
	const placeholder = "nodes:1"
	return strings.Replace(withHost(t, raw, placeholder), placeholder, strings.Join(hosts, ","), 1)
}

// newOnNodes returns a publisher that tries these nodes in this order, and its log.
func newOnNodes(t *testing.T, vhost string, timeout time.Duration, hosts ...string) (*Publisher, *records) {
	t.Helper()
	log := &records{}
	p, err := New(Config{
		URL: withNodes(t, vhost, hosts...), SendTimeout: timeout,
		Logger: slog.New(slog.NewJSONHandler(io.MultiWriter(log, t.Output()), nil)),
	})
	must(t, err)
	for i, host := range hosts {
		p.nodes[host] = time.Now().Add(time.Duration(i-len(hosts)) * time.Hour)
	}
	return p, log
}

func closedPort(t *testing.T) string {
	t.Helper()
	port, err := services.FreePort()
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// One node refuses, one accepts the connection and never answers. The time limit of the latter is longer than the test
// may take, so the publisher does not wait for it.
func TestANodeThatAnswersIsUsedBesideOthersThatDoNot(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	ended := make(chan error, 1)
	mute := services.Serve(t, func(client net.Conn) { // and says nothing
		_, err := io.Copy(io.Discard, client)
		ended <- err
	})
	refusing := closedPort(t)
	p, log := newOnNodes(t, broker.VHost(t), 24*time.Hour, mute, refusing, broker.Addr())
	r := start(t, p)
	r.AwaitPhase(t, publish.Ready)
	if err := await.Receive(t, "the silent node is tried, and its connection closed", ended); err != nil {
		t.Error(err)
	}
	got := log.connected(t)
	if got.Address != broker.Addr() || got.Attempts != 3 || !strings.Contains(got.Failed, refusing) {
		t.Errorf("logged %+v, want %s at the third attempt, and that %s failed", got, broker.Addr(), refusing)
	}
	r.Stop(t)
	if list, err := p.address.Nodes(); err != nil || p.nodes.order(list)[0].Address() != broker.Addr() {
		t.Errorf("the node that answered is not the first to try: %v, %v", p.nodes, err)
	}
}

// Both nodes are the same broker behind proxies.
func TestALostConnectionMovesToAnotherNode(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	vhost, a, q := withQueue(t)
	proxies := []*services.Proxy{services.NewProxy(t, broker.Addr()), services.NewProxy(t, broker.Addr())}
	p, log := newOnNodes(t, vhost, 0, proxies[0].Addr(), proxies[1].Addr())
	r := start(t, p)
	r.AwaitPhase(t, publish.Ready)
	f := startFlow(r, &publishtest.Maker{}, "", q, 100)
	for i := range 4 {
		used, other := proxies[i%2], proxies[(i+1)%2]
		if got := log.connected(t); got.Address != used.Addr() || got.Attempts != 0 {
			t.Errorf("connected to %s at attempt %d, want %s and no attempts to count", got.Address, got.Attempts, used.Addr())
		}
		awaitConfirms(t, r, 200)
		mark := r.Mark()
		used.Refuse()
		used.Cut()
		r.AwaitSince(t, mark, publish.Ready)
		used.Accept()
		if other.Connections() != 1 || used.Connections() != 0 {
			t.Errorf("%d connections to the node that was lost, %d to the other one", used.Connections(), other.Connections())
		}
	}
	results := f.end(t)
	checkNotCharged(t, results)
	checkArrived(t, results, a.drain(q))
}

// The text names every node, and the publisher connects when one is back.
func TestAllNodesAreTriedAgainWhenAllHaveFailed(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	proxy := services.NewProxy(t, broker.Addr())
	proxy.Refuse()
	down := closedPort(t)
	p, log := newOnNodes(t, broker.VHost(t), 0, down, proxy.Addr())
	r := start(t, p)
	await.Until(t, "the state names both nodes", func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return slices.ContainsFunc(r.States, func(s publish.State) bool {
			return strings.Contains(s.Detail, down) && strings.Contains(s.Detail, proxy.Addr())
		})
	})
	proxy.Accept()
	r.AwaitPhase(t, publish.Ready)
	if got := log.connected(t); got.Address != proxy.Addr() {
		t.Errorf("connected to %s, want %s", got.Address, proxy.Addr())
	}
}

// A wrong password is wrong on every node: its cure comes before that of a node that is down.
func TestARejectedLoginIsReportedBeforeAnUnreachableNode(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	wrong := strings.Replace(broker.VHost(t), "guest:", "nobody:", 1)
	p, _ := newOnNodes(t, wrong, 0, closedPort(t), broker.Addr())
	list, err := p.address.Nodes()
	must(t, err)
	_, err = p.openFirst(t.Context(), list)
	var failed *amqpdial.DialError
	if !errors.As(err, &failed) || failed.Part != "login" {
		t.Errorf("the first error is %v, want that of the login", err)
	}
}

// TestWhyTheBrokerTakesNoConnection: log and state name the cause in plain words, and a command that fixes it.
func TestWhyTheBrokerTakesNoConnection(t *testing.T) {
	t.Parallel()
	good, err := url.Parse(services.VHost(t))
	must(t, err)
	with := func(change func(*url.URL)) string {
		u := *good
		change(&u)
		return u.String()
	}
	for name, test := range map[string]struct{ url, text, hint string }{
		"password": {
			with(func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "wr0ng") }),
			"username or password not allowed", "rabbitmqctl change_password " + good.User.Username(),
		},
		"virtual host": {with(func(u *url.URL) { u.Path = "/no-such" }), `virtual host \"no-such\": vhost no-such not found`, "rabbitmqctl add_vhost no-such && rabbitmqctl set_permissions"},
		"port":         {"amqp://guest:wr0ng@127.0.0.1:1/", "RabbitMQ at 127.0.0.1:1: connection refused", "check that RabbitMQ runs there"},
		"TLS":          {with(func(u *url.URL) { u.Scheme = "amqps" }), "first record does not look like a TLS handshake", "as a rule 5671"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log publishtest.Buffer
			p, err := New(Config{URL: test.url, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
			must(t, err)
			r := start(t, p)
			await.Until(t, "the log names it", func() bool { return strings.Contains(strings.Join(log.Lines(), ""), "broker_down") })
			r.Stop(t)
			text := strings.Join(log.Lines(), "\n")
			for _, words := range []string{test.text, test.hint, `"hint":"`} {
				if !strings.Contains(text, words) {
					t.Errorf("%q is missing in\n%s", words, text)
				}
			}
			if strings.Contains(text, "Exception (") || strings.Contains(text, "wr0ng") {
				t.Errorf("a phrase of the driver, or the password, in\n%s", text)
			}
		})
	}
}

// A web server answers in another protocol. Postgres hangs up, and so does a proxy in front of a RabbitMQ that restarts.
func TestAPortThatDoesNotSpeakAMQPIsNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ says, problem, hint string }{
		{"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", " accepts connections, but does not speak AMQP", "# check the port"},
		{"", " accepted the connection, but ended it before RabbitMQ answered: the other side closed it", "# RabbitMQ may be starting"},
	} {
		t.Run(tc.says, func(t *testing.T) {
			address := otherServer(t, tc.says)
			var log publishtest.Buffer
			p, err := New(Config{URL: "amqp://user:secret@" + address + "/", Logger: slog.New(slog.NewJSONHandler(&log, nil))})
			must(t, err)
			r := start(t, p)
			r.AwaitPhase(t, publish.Connecting)
			var state publish.State
			r.Await(t, "the log and the state name a failed attempt", func() bool {
				state = r.States[len(r.States)-1]
				return strings.Contains(strings.Join(log.Lines(), ""), "broker_down") && strings.Contains(state.Detail, tc.problem)
			})
			r.Stop(t)
			text := strings.Join(log.Lines(), "\n")
			for _, words := range []string{`"event":"broker_down"`, address + tc.problem, `"hint":"` + tc.hint, "15672 is the management API"} {
				if !strings.Contains(text, words) {
					t.Errorf("not said: %s\n%s", words, text)
				}
			}
			if strings.Contains(text, "secret") {
				t.Error("the password is in the log")
			}
		})
	}
}

// otherServer reads the header that a client of AMQP begins with, says something and hangs up.
func otherServer(t *testing.T, says string) (address string) {
	t.Helper()
	return services.Serve(t, func(client net.Conn) {
		_, _ = io.ReadFull(client, make([]byte, 8)) // unread, it would be a reset
		_, _ = io.WriteString(client, says)
	})
}

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
