package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/decode"
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// streamedRows are rows on their way from the stream to the publisher. Only run's goroutine uses them.
type streamedRows struct {
	decoder *decode.Decoder
	headers []string // columns that are sent as headers
	// waited is how long the stream has waited for room since the window was last half empty. It waits at most
	// mostWait; then rows stay in the table.
	waited time.Duration
	// leaving are rows to publish, collected so that few writes send them.
	leaving []*outbox.Message
}

const (
	// mostLeaving is how many rows are collected at most.
	mostLeaving = 64
	mostWait    = 300 * time.Millisecond
)

// Alive implements replication.Handler. A message may have been on the network for long, so only its sending time
// counts.
func (s *streamer) Alive(at, sent time.Time) {
	s.alive.last.Store(at.UnixNano())
	s.progress.heard.Store(at.UnixNano())
	ours := s.clock.Load().AtLeast(sent)
	if ours.After(at) {
		ours = at // a clock was set meanwhile
	}
	s.sent = core.ServerClock{Ours: ours, Server: sent}
}

// Idle implements replication.Handler: it publishes the collected rows.
func (s *streamer) Idle() {
	if n := len(s.rows.leaving); n > 0 && s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("publishing streamed rows", "rows", n,
			"first_id", s.rows.leaving[0].ID, "last_id", s.rows.leaving[n-1].ID)
	}
	s.apply(core.Out{Publish: s.rows.leaving})
	clear(s.rows.leaving)
	s.rows.leaving = s.rows.leaving[:0]
}

// Passed implements replication.Handler.
func (s *streamer) Passed(position pglogrepl.LSN) {
	s.progress.position.Store(uint64(position))
	if !s.progress.caughtUp.Load() {
		s.progress.caughtUp.Store(true)
		s.core.StreamLive(true)
		s.log.Info("streaming: this relay publishes rows when they are committed",
			"event", event.Streaming, "slot", s.names.Slot, "position", position.String())
	}
}

// WAL implements replication.Handler: it decodes one message, and passes a row on. It waits for room, for a
// limited time.
func (s *streamer) WAL(data []byte) (pglogrepl.LSN, error) {
	s.progress.messages.Add(1)
	event, err := s.rows.decoder.Decode(data)
	if err != nil {
		return 0, s.unreadable(err)
	}
	switch event.Kind {
	case decode.Commit:
		return event.EndLSN, nil
	case decode.Insert:
		event.Message.CommittedAt = s.rows.decoder.CommittedAt()
		if expires := event.Message.ExpiresAt; expires != nil {
			event.Message.Deadline = new(s.sent.AtLeast(*expires))
		}
		s.insert(event.Message, uint64(event.CommitLSN))
	}
	return 0, nil
}

// unreadable continues the stream after a row that cannot be decoded.
func (s *streamer) unreadable(err error) error {
	var row *decode.RowError
	if !errors.As(err, &row) {
		return fmt.Errorf("decode the stream: %w", err)
	}
	s.counts.Undecodable()
	s.log.Error("cannot decode streamed row: retrying from the table",
		"event", event.RowUndecodable, "error", pgdial.Text(err))
	s.core.Unread()
	return nil
}

func (s *streamer) insert(m *outbox.Message, commitLSN uint64) {
	for {
		out, v := s.core.Streamed(m, commitLSN, s.rows.waited < mostWait)
		switch v {
		case core.NoRoom:
			s.Idle()
			s.awaitRoom()
			continue
		case core.Taken:
			if s.rows.leaving = append(s.rows.leaving, out.Publish...); len(s.rows.leaving) >= mostLeaving {
				s.Idle()
			}
			if s.rows.waited > 0 && s.core.View().Eased {
				s.rows.waited = 0
			}
		case core.Left:
			s.counts.LeftInTable()
		}
		return
	}
}

func (s *streamer) awaitRoom() {
	began := time.Now()
	timer := time.NewTimer(mostWait - s.rows.waited)
	defer timer.Stop()
	defer func() { s.rows.waited += time.Since(began) }()
	select {
	case <-s.core.Room:
	case <-timer.C:
	}
}
