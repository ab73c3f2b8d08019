package pgdial

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// serverParameters are the server's settings that an address may contain, besides those with a dot in their name.
// Any other goes into options.
const serverParameters = " application_name options search_path client_encoding datestyle intervalstyle timezone " +
	"statement_timeout lock_timeout idle_in_transaction_session_timeout idle_session_timeout transaction_timeout " +
	"tcp_keepalives_idle tcp_keepalives_interval tcp_keepalives_count tcp_user_timeout " +
	"role work_mem jit synchronous_commit default_transaction_isolation default_transaction_read_only "

// CheckParameters returns an error for the first parameter of an address that a relay cannot use. pgconn passes each
// parameter that it does not know to the server, which then rejects every login. Some are of libpq or of a connection
// pool, and others are typing errors.
func CheckParameters(config *pgconn.Config) error {
	for _, name := range slices.Sorted(maps.Keys(config.RuntimeParams)) {
		lower := strings.ToLower(name)
		switch {
		case strings.Contains(name, ".") || strings.Contains(serverParameters, " "+lower+" "):
		case strings.HasPrefix(lower, "pool_"):
			return fmt.Errorf("parameter %s is not supported: leave it out, the pool has a fixed size", name)
		case strings.HasPrefix(lower, "keepalives") || lower == "gssencmode" || lower == "hostaddr" ||
			lower == "load_balance_hosts" || lower == "fallback_application_name" || lower == "replication":
			return fmt.Errorf("parameter %s is not supported: leave it out", name)
		default:
			return fmt.Errorf("parameter %s is unknown; a setting of the server goes into options: "+
				"options=-c%%20%s%%3DVALUE in a URL", name, name)
		}
	}
	return nil
}
