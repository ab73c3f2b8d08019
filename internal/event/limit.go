package event

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/secret"
)

const (
	// mostLines is how many lines of one event are written within window. One more line counts the others.
	mostLines = 10
	window    = time.Minute
	// mostText bounds the message and each attribute of a line, in bytes.
	mostText = 4 << 10
)

// Limited returns a logger that bounds the lines of each event and the length of a line, and removes passwords. Nothing
// is dropped without a count: the newest line that was held back is written when its minute is over, with the number of
// lines. Lines below INFO without an event are only cut.
func Limited(log *slog.Logger) *slog.Logger {
	if _, is := log.Handler().(*handler); is {
		return log
	}
	return slog.New(&handler{next: log.Handler(), held: &held{events: make(map[string]*minute)}})
}

// Flush writes at once what a logger of Limited holds back.
func Flush(log *slog.Logger) {
	h, is := log.Handler().(*handler)
	if !is {
		return
	}
	h.held.mu.Lock()
	ended := h.held.events
	h.held.events = make(map[string]*minute)
	h.held.mu.Unlock()
	for _, m := range ended {
		m.end()
	}
}

// handler is what Limited adds to the handler of a log.
type handler struct {
	next slog.Handler
	name string // of the event, if all lines have the same
	held *held
}

// held has the lines that are held back, for all loggers that come from one.
type held struct {
	mu     sync.Mutex
	events map[string]*minute
}

// minute is what one event has logged since its first line.
type minute struct {
	began time.Time
	lines int
	more  int
	// newest writes the newest line that was held back; nil: there is none.
	newest func(more int)
	timer  *time.Timer
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{next: h.next.WithGroup(name), name: h.name, held: h.held}
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	short, name := make([]slog.Attr, 0, len(attrs)), h.name
	for _, a := range attrs {
		name = nameIn(a, name)
		short = append(short, shortened(a))
	}
	return &handler{next: h.next.WithAttrs(short), name: name, held: h.held}
}

func nameIn(a slog.Attr, otherwise string) string {
	if a.Key == "event" {
		return a.Value.String()
	}
	return otherwise
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	name := h.name
	r.Attrs(func(a slog.Attr) bool { name = nameIn(a, name); return true })
	if (name != "" || r.Level >= slog.LevelInfo) && !h.held.admit(name, func(more int) {
		text := fmt.Sprintf("%d more of this event in the last minute, the newest: %s", more, r.Message)
		_ = h.write(context.WithoutCancel(ctx), r, text, slog.Int("more", more))
	}) {
		return nil
	}
	return h.write(ctx, r, r.Message)
}

func (h *handler) write(ctx context.Context, r slog.Record, text string, more ...slog.Attr) error {
	line := slog.NewRecord(r.Time, r.Level, cut(text), r.PC)
	r.Attrs(func(a slog.Attr) bool { line.AddAttrs(shortened(a)); return true })
	line.AddAttrs(more...)
	return h.next.Handle(ctx, line)
}

// admit reports whether a line of this event is written now. Else it keeps the line.
func (h *held) admit(name string, write func(more int)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	m := h.events[name]
	if m == nil || m.newest == nil && now.Sub(m.began) >= window {
		m = &minute{began: now}
		h.events[name] = m
	}
	if m.lines < mostLines {
		m.lines++
		return true
	}
	m.more++
	if m.newest == nil {
		m.timer = time.AfterFunc(window-now.Sub(m.began), func() {
			h.mu.Lock()
			current := h.events[name] == m
			if current {
				delete(h.events, name)
			}
			h.mu.Unlock()
			if current {
				m.end()
			}
		})
	}
	m.newest = write
	return false
}

// end writes what was held back. It is called once, after the minute has left the map.
func (m *minute) end() {
	if m.newest != nil {
		m.timer.Stop()
		m.newest(m.more)
	}
}

// shortened cuts the text of an attribute.
func shortened(a slog.Attr) slog.Attr {
	switch a.Value = a.Value.Resolve(); a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(cut(a.Value.String()))
	case slog.KindAny:
		text := fmt.Sprint(a.Value.Any())
		if safe := cut(text); safe != text {
			a.Value = slog.StringValue(safe)
		}
	case slog.KindGroup:
		var group []slog.Attr
		for _, one := range a.Value.Group() {
			group = append(group, shortened(one))
		}
		a.Value = slog.GroupValue(group...)
	}
	return a
}

// cut removes passwords, and then what is too long, because half of a URL does not look like one.
func cut(text string) string {
	kept := string(secret.Redact([]byte(text[:min(len(text), 4*mostText)])))
	if len(kept) <= mostText && len(text) <= 4*mostText {
		return kept
	}
	kept = strings.ToValidUTF8(kept[:min(len(kept), mostText)], "\ufffd")
	return fmt.Sprintf("%s… (%d of %d bytes)", kept, len(kept), len(text))
}
