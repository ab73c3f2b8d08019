package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// Nobody waits for a check that hangs, except those who ask for its data.
func TestAHangingCheckDelaysNoOtherPage(t *testing.T) {
	var checks atomic.Int32
	settings := relay.DefaultConfig()
	c, err := New(Config{
		Source: show.NewSource(show.Fixed{Config: &settings}, nil),
		Access: Access{Listen: "127.0.0.1:9465"},
		Limits: Limits{Rows: 50, Failures: 10},
		Log:    slog.New(slog.DiscardHandler),
		Open:   func(context.Context) (*operator.Tables, error) { return nil, errors.New("there is no database") },
		Check: func(ctx context.Context) ([]doctor.Finding, error) {
			checks.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	must(t, err)
	c.checkWait = 0
	running, stop := context.WithCancel(await.Context(t))
	handler := c.handler(running)
	t.Cleanup(func() {
		stop()
		c.checks.running.Wait()
		c.sessions.close(context.WithoutCancel(running))
	})
	fetch := func(path string) (status int, body string) {
		r := httptest.NewRequestWithContext(running, http.MethodGet, "http://localhost"+path, http.NoBody)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		return answer.Code, answer.Body.String()
	}
	for range cap(c.sessions.pages) {
		session := <-c.sessions.pages // all are busy
		t.Cleanup(func() { c.sessions.pages <- session })
	}
	for range 20 {
		status, body := fetch("/check")
		if status != http.StatusOK || !strings.Contains(body, "has been running for") {
			t.Fatalf("status %d while the check runs:\n%s", status, body)
		}
	}
	await.Until(t, "the check runs", func() bool { return checks.Load() > 0 })
	if status, _ := fetch("/"); status != http.StatusOK {
		t.Errorf("the overview: status %d", status)
	}
	if !c.checks.run() || checks.Load() != 1 {
		t.Errorf("the check runs: %v; %d were started", c.checks.run(), checks.Load())
	}
}
