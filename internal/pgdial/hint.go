package pgdial

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// InURL is how hints name the setting with the address.
const InURL = "--database-url (CDC_RELAY_DATABASE_URL)"

// Hint returns what fixes a connection that failed: SQL, a shell command, or a remark. It returns "" for other errors.
func Hint(err error) string {
	var rejected *pgconn.ConnectError
	var answer *pgconn.PgError
	if !errors.As(err, &rejected) {
		return ""
	}
	if !errors.As(err, &answer) {
		return unanswered(rejected)
	}
	database, user := outbox.Identifier(rejected.Config.Database), outbox.Identifier(rejected.Config.User)
	says := func(words string) bool { return strings.Contains(answer.Message, words) }
	switch {
	case answer.Code == pgerrcode.InvalidPassword:
		return fmt.Sprintf("-- check user and password in %s; to set one: ALTER ROLE %s PASSWORD '...';", InURL, user)
	case answer.Code == pgerrcode.InvalidAuthorizationSpecification && says("does not exist"):
		return fmt.Sprintf("CREATE ROLE %s LOGIN;  -- or use another in %s", user, InURL)
	case answer.Code == pgerrcode.InvalidAuthorizationSpecification && says("not permitted to log in"):
		return fmt.Sprintf("ALTER ROLE %s LOGIN;", user)
	case answer.Code == pgerrcode.InvalidAuthorizationSpecification:
		return unauthorized(answer.Message, database, user)
	case answer.Code == pgerrcode.InvalidCatalogName:
		return fmt.Sprintf("CREATE DATABASE %s;  -- or use another in %s", database, InURL)
	case answer.Code == pgerrcode.InsufficientPrivilege:
		return fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", database, user)
	case answer.Code == pgerrcode.TooManyConnections && says("for role"):
		return fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT -1;", user)
	case answer.Code == pgerrcode.TooManyConnections && says("for database"):
		return fmt.Sprintf("ALTER DATABASE %s CONNECTION LIMIT -1;", database)
	case answer.Code == pgerrcode.TooManyConnections:
		return "SELECT pid, usename, application_name, state FROM pg_stat_activity;  " +
			"-- close some, or raise max_connections"
	case answer.Code == pgerrcode.UndefinedObject || answer.Code == pgerrcode.InvalidParameterValue ||
		answer.Code == pgerrcode.CantChangeRuntimeParam:
		return "# correct this parameter, or options, in " + InURL
	case answer.Code == pgerrcode.ObjectNotInPrerequisiteState:
		return fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS true;", database)
	}
	return ""
}

// unauthorized is the hint for a login that pg_hba.conf or a certificate does not allow. It never asks for less than
// the server does: a line for connections without TLS.
func unauthorized(message, database, user string) string {
	const reload = "SELECT pg_reload_conf();  -- after this line in pg_hba.conf: "
	says := func(words string) bool { return strings.Contains(message, words) }
	address := "ADDRESS/32"
	if m := regexp.MustCompile(`for host "([0-9a-f.:]+)"`).FindStringSubmatch(message); m != nil {
		address = m[1] + map[bool]string{false: "/32", true: "/128"}[strings.Contains(m[1], ":")]
	}
	switch {
	case says("requires a valid client certificate"):
		return "# set a client certificate in " + InURL + ": " + certificates().Client
	case says("ertificate authentication failed"):
		return "# use a client certificate with the common name " + user + ", or the role that it names, in " + InURL
	case says("eer authentication failed") || says("dent authentication failed"):
		return "# pg_hba.conf compares the role with the user of the operating system: run as that user, or use " +
			"host=localhost and a password in " + InURL
	case says(`host "[local]"`):
		return fmt.Sprintf(reload+"local %s %s scram-sha-256", database, user)
	case says("no encryption") || says("SSL off"):
		return fmt.Sprintf("# set sslmode=verify-full in %s; or, on a network that nobody listens to, "+
			"reload Postgres after this line in pg_hba.conf: host %s %s %s scram-sha-256",
			InURL, database, user, address)
	}
	return fmt.Sprintf(reload+"hostssl %s %s %s scram-sha-256", database, user, address)
}

// unanswered is the hint for a connection without an answer of Postgres.
func unanswered(failed *pgconn.ConnectError) string {
	is := func(of error) bool { return errors.Is(failed, of) }
	switch {
	case is(pgconn.ErrPrimaryConnection) || is(pgconn.ErrReadWriteConnection):
		return "# target_session_attrs asks for a standby, and a relay needs the primary: read-write in " + InURL
	case is(pgconn.ErrStandbyConnection) || is(pgconn.ErrReadOnlyConnection):
		return problem.Standby{}.Hint()
	case certificates().Hint(failed) != "":
		return certificates().Hint(failed)
	case needsTLS(failed.Config) && strings.Contains(failed.Error(), "server refused TLS connection"):
		return "# this server has no TLS: turn ssl on there, or, on a network that nobody listens to, " +
			"write sslmode=disable in " + InURL
	}
	return fmt.Sprintf("pg_isready -h %s -p %d  # check that Postgres runs there, and host and port in %s",
		problem.ShellWord(failed.Config.Host), failed.Config.Port, InURL)
}

func certificates() problem.TLS {
	return problem.TLS{
		Server: "Postgres", InURL: "in " + InURL, Authority: "sslrootcert=FILE", Client: "sslcert=FILE&sslkey=FILE",
		Port: "5432",
	}
}

// needsTLS is false for sslmode prefer and allow: then the attempt without TLS failed as well.
func needsTLS(cfg *pgconn.Config) bool {
	plain := func(f *pgconn.FallbackConfig) bool { return f.TLSConfig == nil }
	return cfg.TLSConfig != nil && !slices.ContainsFunc(cfg.Fallbacks, plain)
}
