package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/replication"
)

// watchEvery is how often the leader checks its stream, and how far the stream may lag.
const watchEvery = 3 * time.Second

// watch finds streams that are connected but bring nothing. It returns an error if the stream has to end.
// If the server is silent or the stream lags, it reports that, and the table is swept. The server may be decoding a
// large transaction, or hold a failover slot back until the standby has the WAL.
// If the publication was changed, the stream ends, and the next connection repairs it. From Postgres 18 on, a missing
// publication is no error of the stream.
func (s *streamer) watch(ctx context.Context, stream *replication.Stream) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	silent := 0 // how many looks in a row found the server silent; one may follow a pause of this process
	var commits replication.Commits
	var before pglogrepl.LSN
	var messages uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		heard := s.alive.age() < silence
		s.core.StreamLive(s.progress.caughtUp.Load() && !s.progress.lagging.Load() && heard)
		if silent++; heard {
			silent = 0
			s.trouble.Over(event.StreamUp, "stream is up again")
		}
		if silent > 1 {
			s.trouble.Report(event.StreamDown, "stream is silent: publishing rows from the table too",
				fmt.Errorf("the server has sent nothing for %s", silence))
		}
		fault, flushed, confirm, err := s.ask(ctx, &commits)
		switch {
		case err != nil: // the sweep asks more often and reports the error
			continue
		case fault != "":
			return errors.New("the publication was changed: " + fault)
		}
		stream.Confirm(confirm)
		came := s.progress.messages.Load()
		position := pglogrepl.LSN(s.progress.position.Load())
		s.lags(position < before && came == messages, position, before)
		before, messages = flushed, came
	}
}

// ask returns what is wrong with the publication, and the positions of Commits.Ask.
func (s *streamer) ask(
	ctx context.Context, commits *replication.Commits,
) (fault string, flushed, confirm pglogrepl.LSN, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	err = s.store.Conn(ctx, func(conn *pgx.Conn) (err error) {
		if fault, err = provision.PublicationFaulty(ctx, conn.PgConn(), s.names); err == nil {
			flushed, confirm, err = commits.Ask(ctx, conn.PgConn())
		}
		return err
	})
	return fault, flushed, confirm, err
}

func (s *streamer) lags(behind bool, position, wal pglogrepl.LSN) {
	s.progress.lagging.Store(behind)
	switch {
	case !s.progress.caughtUp.Load(): // reading older WAL is no lag
	case behind:
		lag := problem.New(
			problem.Command(s.names.Table, "check")+
				"  # area slot; after a huge transaction the stream catches up by itself",
			"the stream is at %s, and the server had WAL up to %s %s ago", position, wal, watchEvery)
		s.progress.behind.Report(event.StreamLagging, "stream lags behind: publishing rows from the table too", lag)
	default:
		s.progress.behind.Over(event.StreamCaughtUp, "stream has caught up")
	}
}
