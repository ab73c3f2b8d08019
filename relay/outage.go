package relay

import (
	"log/slog"

	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// newOutageLog returns a log for outages of the database.
func newOutageLog(log *slog.Logger) *outagelog.Log {
	return outagelog.New(log, func(err error) (cause, hint string) {
		return pgdial.Cause(err), orElse(problem.Hint(err), pgdial.Hint(err))
	})
}
