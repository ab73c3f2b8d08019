package relay

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/replication"
)

// inspectEvery is how often the leader asks the database whether its
// stream can be believed, and how far it may lag behind.
const inspectEvery = 3 * time.Second

// inspect looks for what makes a stream silent that is alive otherwise. It ends one
// whose publication brings nothing any more (from Postgres 18 on that is no error even
// where it is gone): the next connection fixes it. One that brings nothing and lags
// behind it calls so, and the table is swept: the server may have to decode somebody's great transaction,
// or hold a failover slot back until the standby has the WAL.
func (s *streamer) inspect(ctx context.Context, pid uint32, end context.CancelCauseFunc) {
	var before pglogrepl.LSN
	var messages uint64
	for sleep(ctx, inspectEvery) == nil {
		var seen replication.Inspection
		askCtx, cancel := context.WithTimeout(ctx, inspectEvery)
		err := s.ask(askCtx, pid) // a clock may have been set
		if err == nil {
			err = s.store.Conn(askCtx, func(conn *pgx.Conn) (err error) {
				seen, err = replication.Inspect(askCtx, conn.PgConn(), s.names)
				return err
			})
		}
		cancel()
		switch {
		case errors.Is(err, errReplaced):
			end(err)
			return
		case err != nil: // the sweep asks more often, and tells
			refusedBy(err, s.refused)
			continue
		case seen.Fault != "":
			end(&publicationError{seen.Fault})
			return
		}
		came := s.messages.Load()
		s.lags(s.position.Load() < uint64(before) && came == messages)
		before, messages = seen.Flushed, came
	}
}

func (s *streamer) lags(behind bool) {
	if s.lagging.Swap(behind) == behind || !s.caughtUp.Load() {
		return
	}
	if behind {
		s.log.Warn("stream lags behind: publishing rows from the table too", "event", event.StreamLagging, "slot", s.names.Slot)
	} else {
		s.log.Info("stream has caught up", "event", event.StreamCaughtUp, "slot", s.names.Slot)
	}
}

// publicationError ends a stream whose publication was changed under it.
type publicationError struct{ fault string }

func (e *publicationError) Error() string { return "the publication was changed: " + e.fault }
