package relay_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// A publisher that never answers is reported, is tried at intervals, and charges no attempt. It recovers by itself. A
// drain ends with an error.
func TestAPublisherThatNeverAnswersIsAnOutage(t *testing.T) {
	services.Thorough(t, "waits for the send timeout of a drain")
	config, conn := emptyTable(t, relay.ModePoll)
	config.SendTimeout = 2 * time.Second
	for _, key := range []string{"", "k"} {
		services.Must(t, config.Table.Enqueue(t.Context(), conn, outbox.NewMessage{RoutingKey: "a", OrderingKey: key, Payload: 1}))
	}
	var answers atomic.Bool
	var tries atomic.Int64
	publisher := func() *outboxtest.Publisher {
		return outboxtest.NewPublisher(func(*outbox.Message) outbox.Result {
			if answers.Load() {
				return outbox.Result{}
			}
			tries.Add(1)
			return outbox.Result{Outcome: outbox.Unknown, Detail: "the target says nothing"}
		})
	}
	drainer, err := relay.New(config, publisher(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	services.Must(t, err)
	if err := drainer.Drain(t.Context()); err == nil || !strings.Contains(err.Error(), "remain in") {
		t.Errorf("drain: %v", err)
	}
	if n := tries.Load(); n > 20 {
		t.Errorf("a drain tried %d times", n)
	}
	log := &bytes.Buffer{}
	r, end := runRelay(t, config, publisher(), slog.NewTextHandler(log, nil))
	await.Until(t, "the relay is not ready, and says why", func() bool {
		for _, part := range r.Health().Parts {
			if part.Name == "publisher" && !part.Ready && strings.Contains(part.Detail, "the target says nothing") {
				return true
			}
		}
		return false
	})
	var attempts int
	if err := conn.QueryRow(t.Context(), `SELECT sum(attempts) FROM outbox`).Scan(&attempts); err != nil || attempts != 0 {
		t.Errorf("%d attempts were charged, %v", attempts, err)
	}
	answers.Store(true)
	await.Until(t, "the messages leave and the relay is ready", func() bool {
		var left int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM outbox`).Scan(&left)
		return err == nil && left == 0 && r.Health().Ready
	})
	end()
	for _, name := range []string{"publisher_failing", "publisher_recovered"} {
		if !strings.Contains(log.String(), "event="+name) {
			t.Errorf("the log has no event %s:\n%s", name, log)
		}
	}
}
