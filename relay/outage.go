package relay

import (
	"log/slog"

	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
)

// newOutageLog returns a log for outages of the database at this address.
func newOutageLog(log *slog.Logger, address pgdial.Address) *outagelog.Log {
	return outagelog.New(log, func(err error) (cause, hint string) {
		return address.WithOrigin(pgdial.Cause(err), err), address.Hint(err)
	})
}
