package pgdial

import (
	"errors"
	"fmt"
	"net/netip"
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
	// The server may translate its message. Its routine tells one cause of a code from the others.
	from := func(routine string) bool { return answer.Routine == routine }
	switch {
	case answer.Code == pgerrcode.InvalidPassword:
		return fmt.Sprintf("-- check user and password in %s; to set one: ALTER ROLE %s PASSWORD '...';", InURL, user)
	case answer.Code == pgerrcode.InvalidAuthorizationSpecification && from("InitializeSessionUserId"):
		return fmt.Sprintf(
			"ALTER ROLE %s LOGIN;  -- or, if it does not exist: CREATE ROLE %[1]s LOGIN; or use another in %s",
			user, InURL)
	case answer.Code == pgerrcode.InvalidAuthorizationSpecification:
		return unauthorized(answer, rejected, database, user)
	case answer.Code == pgerrcode.InvalidCatalogName:
		return fmt.Sprintf("CREATE DATABASE %s;  -- or use another in %s", database, InURL)
	case answer.Code == pgerrcode.InsufficientPrivilege:
		return fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", database, user)
	case answer.Code == pgerrcode.TooManyConnections && from("InitializeSessionUserId"):
		return fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT -1;", user)
	case answer.Code == pgerrcode.TooManyConnections && from("CheckMyDatabase"):
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
// the server does: a line for connections without TLS. Names of files and addresses are the same in all languages.
func unauthorized(answer *pgconn.PgError, rejected *pgconn.ConnectError, database, user string) string {
	const reload = "SELECT pg_reload_conf();  -- after this line in pg_hba.conf: "
	says := func(words string) bool { return strings.Contains(answer.Message, words) }
	tls, address := rejected.Config.TLSConfig, "ADDRESS/32"
	for word := range strings.FieldsFuncSeq(answer.Message, func(r rune) bool {
		return !strings.ContainsRune("0123456789abcdef.:", r)
	}) {
		if ip, err := netip.ParseAddr(word); err == nil {
			address = netip.PrefixFrom(ip, ip.BitLen()).String()
			break
		}
	}
	switch {
	case answer.Routine == "auth_failed" && tls != nil && len(tls.Certificates) > 0:
		return "# use a client certificate with the common name " + user + ", or the role that it names, in " + InURL
	case answer.Routine == "auth_failed" && !strings.HasPrefix(rejected.Config.Host, "/"):
		return "# pg_hba.conf checks this role in another way than by a password of Postgres, such as ident or LDAP: " +
			"check user and password in " + InURL + "; the log of Postgres says more"
	case answer.Routine == "auth_failed":
		return "# pg_hba.conf compares the role with the user of the operating system: run as that user, or use " +
			"host=localhost and a password in " + InURL
	case !says("pg_hba.conf"):
		return "# set a client certificate in " + InURL + ": " + certificates().Client
	case says("[local]"):
		return fmt.Sprintf(reload+"local %s %s scram-sha-256", database, user)
	case tls == nil || strings.Contains(rejected.Error(), refusesTLS):
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
	case needsTLS(failed.Config) && strings.Contains(failed.Error(), refusesTLS):
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
