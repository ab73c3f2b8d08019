package amqp

import (
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

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
