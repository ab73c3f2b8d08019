package relay

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/replication"
)

// checkPublication is how often the holder of the slot looks whether its publication
// still brings its table. A stream from one that was changed is silent, as is, from
// Postgres 18 on, one from a publication that is gone until somebody writes.
const checkPublication = 5 * time.Second

// watchPublication ends the stream where it brings nothing any more: the next
// connection mends the publication, and what is in the table is swept.
func (s *streamer) watchPublication(ctx context.Context, end context.CancelCauseFunc) {
	for sleep(ctx, checkPublication) == nil {
		var wrong string
		askCtx, cancel := context.WithTimeout(ctx, checkPublication)
		err := s.store.Conn(askCtx, func(conn *pgx.Conn) (err error) {
			wrong, err = replication.PublicationFault(askCtx, conn.PgConn(), s.names)
			return err
		})
		cancel()
		if err == nil && wrong != "" { // an error is the sweep's to tell, which asks more often
			end(&publicationError{wrong})
			return
		}
	}
}

// publicationError ends a stream whose publication was changed under it.
type publicationError struct{ fault string }

func (e *publicationError) Error() string { return "the publication was changed: " + e.fault }
