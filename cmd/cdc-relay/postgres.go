package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// connectTimeout is for commands that a person waits for.
const connectTimeout = 10 * time.Second

// connect opens an ordinary connection. The caller closes it with closeConn.
func connect(ctx context.Context, url, command string) (*pgx.Conn, error) {
	return connectWith(ctx, url, command, func(*pgx.ConnConfig) {})
}

// connectWith lets the caller change how it connects.
func connectWith(ctx context.Context, url, command string, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, usagef("--database-url: not understood") // checked before
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "cdc-relay " + command
	}
	cfg.RuntimeParams["client_encoding"] = "UTF8" // whatever the database's is
	change(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		err = fmt.Errorf("connect to Postgres at %s: %w", where(cfg), err)
		return nil, hinted{err, connectHint(cfg, err)}
	}
	return conn, nil
}

// closeConn also after ctx is done, and not longer than a moment.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	conn.Close(ctx) //nolint:errcheck // the server sees the end of the connection anyway
}

func where(cfg *pgx.ConnConfig) string {
	return fmt.Sprintf("%s:%d, database %q, user %q", cfg.Host, cfg.Port, cfg.Database, cfg.User)
}

func connectHint(cfg *pgx.ConnConfig, err error) string {
	if hint := problem.Hint(err); hint != "" {
		return hint
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return "check that Postgres runs there, and host and port in --database-url (CDC_RELAY_DATABASE_URL)"
	}
	switch pgErr.Code {
	case "28P01", "28000":
		return "check user and password in --database-url (CDC_RELAY_DATABASE_URL), and pg_hba.conf of the server"
	case "3D000":
		return fmt.Sprintf("CREATE DATABASE %s; or name another in --database-url (CDC_RELAY_DATABASE_URL)", pgx.Identifier{cfg.Database}.Sanitize())
	case "53300":
		return "raise max_connections of the server, or close connections"
	}
	return ""
}

// openDatabase reads the configuration of a command that needs the database alone, and
// connects. The caller closes the connection with closeConn.
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
