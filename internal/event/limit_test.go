package event_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// written is what a log has written since the last call of String.
type written struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.text.Reset()
	return w.text.String()
}

func limited() (*slog.Logger, *written) {
	text := new(written)
	return event.Limited(slog.New(slog.NewJSONHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug}))), text
}

type line struct {
	Level, Msg, Event string
	ID, More          int
}

func linesOf(t *testing.T, text *written) (lines []line) {
	t.Helper()
	for raw := range strings.Lines(text.String()) {
		var l line
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatalf("%s: %s", err, raw)
		}
		lines = append(lines, l)
	}
	return lines
}

func TestLinesOfAnEventAreBoundedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, text := limited()
		with := log.With("event", event.BrokerUnblocked, "for", "notices")
		for id := range 20_000 {
			log.Warn("blocked", "event", event.BrokerBlocked, "id", id)
			with.WithGroup("g").Info("unblocked")
			log.Debug("detail")
		}
		counts := make(map[string]int)
		for _, l := range linesOf(t, text) {
			counts[l.Msg]++
		}
		if counts["blocked"] != 10 || counts["unblocked"] != 10 || counts["detail"] != 20_000 {
			t.Errorf("got %v", counts)
		}
		log.Error("another event", "event", event.StreamDown)
		if got := linesOf(t, text); len(got) != 1 {
			t.Errorf("another event is held back: %v", got)
		}
		time.Sleep(time.Minute) // of the bubble's clock
		synctest.Wait()
		got := linesOf(t, text)
		if len(got) != 2 {
			t.Fatalf("got %v", got)
		}
		for _, l := range got {
			if l.Event == "broker_blocked" && (l.Msg != "19990 more of this event in the last minute, the newest: blocked" ||
				l.Level != "WARN" || l.ID != 19_999 || l.More != 19_990) {
				t.Errorf("got %+v", l)
			}
		}
		log.Warn("blocked", "event", event.BrokerBlocked)
		if got := linesOf(t, text); len(got) != 1 || got[0].Msg != "blocked" {
			t.Errorf("in the next minute: got %v", got)
		}
	})
}

func TestFlushWritesWhatIsHeldBack(t *testing.T) {
	log, text := limited()
	for id := range 12 {
		log.Warn("rejected", "event", event.MessageRejected, "id", id)
	}
	event.Flush(log)
	event.Flush(log)
	if got := linesOf(t, text); len(got) != 11 || got[10].More != 2 || got[10].ID != 11 {
		t.Errorf("got %v", got)
	}
	if event.Limited(log) != log {
		t.Error("a limited logger is limited twice")
	}
}

type secretive string

func (s secretive) LogValue() slog.Value { return slog.StringValue(string(s)) }

func TestLongTextsAreCutWithoutTheirSecrets(t *testing.T) {
	long := strings.Repeat("é\n\x1b", 1_000_000)
	secret := strings.Repeat("x", 4082) + "amqp://u:s3cr3t@host/" + long
	for name, value := range map[string]any{
		"a text": long, "an error": errors.New(long), "a list": []string{long}, "bytes": []byte(long),
		"a group":  slog.GroupValue(slog.String("a", long), slog.Any("b", errors.New(long))),
		"a valuer": secretive(long), "a secret at the end": secret, "an error with a secret": errors.New(secret),
		"invalid text": strings.Repeat("\xff", 5_000_000),
	} {
		log, text := limited()
		log.Warn("failed", "event", event.BrokerDown, "error", value)
		log.With("error", value).Warn("failed", "event", event.BrokerDown)
		log.Debug(long, "error", value)
		if got := text.String(); len(got) > 150_000 || strings.Contains(got, "s3cr") || !strings.Contains(got, " bytes)") ||
			strings.Count(got, "\n") != 3 {
			t.Errorf("%s: got %d bytes: %.5000s", name, len(got), got)
		}
	}
	log, text := limited()
	log.Warn("failed", "event", event.BrokerDown, "error", error(nil), "list", []int{1, 2}, "level", slog.LevelWarn,
		"url", errors.New("dial amqp://u:s3cr3t@h: refused"))
	if got := text.String(); !strings.Contains(got,
		`"event":"broker_down","error":null,"list":[1,2],"level":"WARN","url":"dial amqp://u:***@h: refused"}`) {
		t.Errorf("a short line is changed: %s", got)
	}
}
