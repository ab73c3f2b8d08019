package relay

import (
	"log/slog"

	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// newOutageLog returns a log for outages of the database at this address.
func newOutageLog(log *slog.Logger, address pgdial.Address) *outagelog.Log {
	return outagelog.New(log, func(err error) (cause, hint string) {
		cause = pgdial.Cause(err)
		if origin := address.Origin(err); origin != "" {
			cause += "; " + origin
		}
		return cause, orElse(problem.Hint(err), pgdial.Hint(err))
	})
}
