package slot

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// applicationPrefix is the start of the application_name of a relay's stream. Its table follows.
const applicationPrefix = "cdc-relay stream "

// Application returns the application_name of a relay's stream from this table. Postgres cuts a name after 63 bytes and
// replaces non-ASCII characters; such a table is named by a hash.
func Application(table outbox.Table) string {
	const longest = 63
	name := applicationPrefix + table.String()
	plain := !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' })
	if plain && len(name) <= longest {
		return name
	}
	return fmt.Sprintf("%s#%x", applicationPrefix, sha256.Sum256([]byte(name)))[:len(applicationPrefix)+17]
}

// Relays reports whether the process streams to a relay of the table.
func (p Process) Relays(table outbox.Table) bool {
	return p.Application != nil && *p.Application == Application(table)
}

// OfRelay reports whether the process serves a relay, or has ended.
func (p Process) OfRelay() bool {
	return p.Application == nil || strings.HasPrefix(*p.Application, "cdc-relay")
}

// String returns a description for people.
func (p Process) String() string {
	var known []string
	if p.Application != nil && *p.Application != "" {
		known = append(known, *p.Application)
	}
	if p.Client != nil {
		known = append(known, "from "+*p.Client)
	}
	if len(known) == 0 {
		return fmt.Sprintf("Postgres process %d", p.PID)
	}
	return fmt.Sprintf("Postgres process %d (%s)", p.PID, strings.Join(known, " "))
}

// Terminate ends the process and so frees its slot; the server would wait for wal_sender_timeout. It does nothing if
// another process has the PID now. A role may end its own processes.
func (p Process) Terminate(ctx context.Context, conn *pgconn.PgConn) error {
	_, err := Query(ctx, conn, fmt.Sprintf(`
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE pid = %d AND backend_start = '%s'`,
		p.PID, p.Since.Format(time.RFC3339Nano)))
	if err != nil {
		return fmt.Errorf("terminate %s: %w", p, err)
	}
	return nil
}
