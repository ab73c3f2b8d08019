package pgdial

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// OldestMajor is the oldest version of Postgres that is supported.
const OldestMajor = 15

// Version returns the version of the server, as it tells it.
func Version(conn *pgconn.PgConn) string { return conn.ParameterStatus("server_version") }

// Major returns the major version, or 0 if it is unknown ("17beta1" is 17).
func Major(version string) int {
	digits := strings.IndexFunc(version+".", func(r rune) bool { return r < '0' || r > '9' })
	major, _ := strconv.Atoi(version[:digits])
	return major
}

// CheckVersion returns a *problem.Problem for a version that is too old.
func CheckVersion(version string) error {
	if major := Major(version); major == 0 || major >= OldestMajor {
		return nil
	}
	return problem.New("# upgrade Postgres",
		"Postgres %s is too old: cdc-relay needs %d or later", version, OldestMajor)
}
