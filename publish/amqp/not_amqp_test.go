package amqp

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
)

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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { _ = listener.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(conn, make([]byte, 8)) // unread, it would be a reset
			_, _ = io.WriteString(conn, says)
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}
