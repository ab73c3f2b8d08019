package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// connectTimeout is for commands with a person waiting.
const connectTimeout = 10 * time.Second

// connect opens an ordinary connection. It can write even if the role is read-only by default. The caller closes it
// with closeConn.
func connect(ctx context.Context, url, command string) (*pgx.Conn, error) {
	conn, err := connectWith(ctx, url, command, func(cfg *pgx.ConnConfig) { pgdial.AsWriter(&cfg.Config) })
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SET default_transaction_read_only = off"); err != nil {
		closeConn(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// connectWith lets the caller change the connection settings.
func connectWith(ctx context.Context, url, command string, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, usagef("--database-url: not understood") // validated before
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "cdc-relay " + command
	}
	cfg.RuntimeParams["client_encoding"] = "UTF8" // also if the database has another encoding
	change(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		err = fmt.Errorf("connect to Postgres at %s: %w", where(cfg), err)
		return nil, hinted{err, connectHint(cfg, err)}
	}
	return conn, nil
}

// closeConn closes the connection within a short time, also if ctx is done.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	conn.Close(ctx) //nolint:errcheck // the server notices the end of the connection in any case
}

func where(cfg *pgx.ConnConfig) string {
	return fmt.Sprintf("%s:%d, database %q, user %q", cfg.Host, cfg.Port, cfg.Database, cfg.User)
}

// connectHint returns a shell command to paste.
func connectHint(cfg *pgx.ConnConfig, err error) string {
	if hint := problem.Hint(err); hint != "" {
		return hint
	}
	const inURL = pgdial.InURL
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	switch {
	case pgcode.Of(err) != "":
		return pgdial.Hint(err)
	case errors.As(err, &authority):
		return "# name the authority of the server's certificate: sslrootcert=FILE in " + inURL
	case errors.As(err, &hostname):
		return "# name the host as the server's certificate does in " + inURL
	case needsTLS(cfg) && strings.Contains(err.Error(), "server refused TLS connection"):
		return "# this server has no TLS: turn ssl on there, or, on a network that nobody listens to, write sslmode=disable in " + inURL
	}
	return fmt.Sprintf("pg_isready -h %s -p %d  # check that Postgres runs there, and host and port in %s", quotedWord(cfg.Host), cfg.Port, inURL)
}

// needsTLS is false for sslmode prefer and allow: then the attempt without TLS failed as well.
func needsTLS(cfg *pgx.ConnConfig) bool {
	plain := func(f *pgconn.FallbackConfig) bool { return f.TLSConfig == nil }
	return cfg.TLSConfig != nil && !slices.ContainsFunc(cfg.Fallbacks, plain)
}

// quotedWord quotes a word for the shell.
func quotedWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// openDatabase reads the configuration of a command that needs only the database, and connects. The caller closes the
// connection with closeConn.
func (p *process) openDatabase(c *cli.Context, command string) (*config, *pgx.Conn, error) {
	cfg, err := p.resolve(c)
	if err != nil {
		return nil, nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, nil, err
	}
	conn, err := connect(c.Context, cfg.relay.DatabaseURL, command)
	return cfg, conn, err
}
