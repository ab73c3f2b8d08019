package relay

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/replication"
)

// inspectEvery is how often the leader checks its stream, and how far the stream may lag.
const inspectEvery = 3 * time.Second

// inspect finds streams that are connected but bring nothing.
// If the publication was changed, inspect ends the stream; the next connection repairs it. From Postgres 18 on, a
// missing publication is no error of the stream.
// If the stream lags, inspect reports it, and the table is swept. The server may be decoding a large transaction, or
// hold a failover slot back until the standby has the WAL.
func (s *streamer) inspect(ctx context.Context, stream *replication.Stream, end context.CancelCauseFunc) {
	var commits replication.Commits
	var before pglogrepl.LSN
	var messages uint64
	for sleep(ctx, inspectEvery) == nil {
		var fault string
		var flushed, confirm pglogrepl.LSN
		askCtx, cancel := context.WithTimeout(ctx, inspectEvery)
		err := s.store.Conn(askCtx, func(conn *pgx.Conn) (err error) {
			if fault, err = provision.PublicationFaulty(askCtx, conn.PgConn(), s.names); err == nil {
				flushed, confirm, err = commits.Ask(askCtx, conn.PgConn())
			}
			return err
		})
		cancel()
		switch {
		case err != nil: // the sweep asks more often and reports the error
			signalIfStopping(err, s.serverStopping)
			continue
		case fault != "":
			end(&publicationError{fault})
			return
		}
		stream.Confirm(confirm)
		came := s.progress.messages.Load()
		position := pglogrepl.LSN(s.progress.position.Load())
		s.lags(position < before && came == messages, position, before)
		before, messages = flushed, came
	}
}

func (s *streamer) lags(behind bool, position, wal pglogrepl.LSN) {
	s.progress.lagging.Store(behind)
	switch {
	case !s.progress.caughtUp.Load(): // reading older WAL is no lag
	case behind:
		lag := problem.New(
			problem.Command(s.names.Table, "check")+
				"  # area slot; after a huge transaction the stream catches up by itself",
			"the stream is at %s, and the server had WAL up to %s %s ago", position, wal, inspectEvery)
		s.progress.behind.Report(event.StreamLagging, "stream lags behind: publishing rows from the table too", lag)
	default:
		s.progress.behind.Over(event.StreamCaughtUp, "stream has caught up")
	}
}

// publicationError ends a stream whose publication was changed.
type publicationError struct{ fault string }

func (e *publicationError) Error() string { return "the publication was changed: " + e.fault }
