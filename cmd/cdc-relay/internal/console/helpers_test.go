package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/secret"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// serve serves a console without a database in this process. Its page "check" calls check.
func serve(
	t *testing.T, checkWait time.Duration, check func(context.Context) ([]doctor.Finding, error),
) (c *Console, at string) {
	t.Helper()
	settings := relay.DefaultConfig()
	c, err := New(Config{
		Source: show.NewSource(show.Fixed{Config: &settings}, nil),
		Access: Access{Listen: "127.0.0.1:9465"},
		Limits: Limits{Rows: 50, Failures: 10},
		Log:    slog.New(slog.DiscardHandler),
		Open:   func(context.Context) (*operator.Tables, error) { return nil, errors.New("there is no database") },
		Check:  check,
	})
	must(t, err)
	c.checkWait = checkWait
	running, stop := context.WithCancel(await.Context(t))
	server := httptest.NewServer(c.handler(running))
	t.Cleanup(func() {
		stop()
		server.CloseClientConnections()
		server.Close()
		c.checks.running.Wait()
		c.sessions.close(context.WithoutCancel(running))
	})
	return c, server.URL
}

func fetch(t *testing.T, method, address string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(await.Context(t), method, address, http.NoBody)
	must(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(text)
}

// Nobody waits for a server that accepts connections and does not answer, except those who ask for its data.
func TestAHangingServerDelaysNoOtherPage(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var accepted atomic.Int32
	var conns sync.Map
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conns.Store(conn, nil)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		conns.Range(func(conn, _ any) bool { conn.(net.Conn).Close(); return true })
	})
	c, at := serve(t, 0, func(ctx context.Context) ([]doctor.Finding, error) {
		return doctor.Examine(ctx, doctor.Options{
			Connect: func(context.Context, map[string]string) (*pgx.Conn, error) {
				return nil, errors.New("there is no database")
			},
			RabbitMQ: amqpdial.Address{Text: secret.Text{Value: "amqp://" + listener.Addr().String()}},
		}), nil
	})
	for range cap(c.sessions.pages) {
		session := <-c.sessions.pages // all are busy
		t.Cleanup(func() { c.sessions.pages <- session })
	}
	for range 20 {
		status, body := fetch(t, http.MethodGet, at+"/check")
		if status != http.StatusOK || !strings.Contains(body, "has been running for") {
			t.Fatalf("status %d while the check runs:\n%s", status, body)
		}
	}
	await.Until(t, "the check connects", func() bool { return accepted.Load() > 0 })
	if status, _ := fetch(t, http.MethodGet, at+"/"); status != http.StatusOK {
		t.Errorf("the overview: status %d", status)
	}
	if !c.checks.run() || accepted.Load() != 1 {
		t.Errorf("the check runs: %v; %d connections to RabbitMQ", c.checks.run(), accepted.Load())
	}
}
