package console

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve serves a console without a database in this process. Its page "check" calls check.
func serve(
	t *testing.T, checkWait time.Duration, check func(context.Context) ([]doctor.Finding, error),
) (c *Console, at string) {
	t.Helper()
	settings := relay.DefaultConfig()
	c, err := New(Config{
		Source: show.NewSource("", show.Fixed{Config: &settings}, nil),
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

// fetch sends a request over a connection of its own.
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
