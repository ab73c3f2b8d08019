package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func checkDatabaseURL(text string) error {
	_, err := pgdial.Parse(text)
	return err
}

func checkAMQPURL(text string) error {
	_, err := amqpdial.Parse(text)
	return err
}

// checkName checks the length of an exchange or a routing key.
func checkName(text string) error {
	if len(text) > outbox.LongestName {
		return fmt.Errorf("want at most %d bytes, not %d", outbox.LongestName, len(text))
	}
	return nil
}

// checkCertificates reports at the start what would otherwise fail at each connection.
func (c *config) checkCertificates() error {
	text, err := c.rabbitmq.Read()
	if err != nil || checkAMQPURL(text) != nil {
		return nil // the setting reports it
	}
	nodes, err := c.rabbitmq.Nodes()
	if err != nil {
		return usagef("%s", err)
	}
	for _, node := range nodes {
		if _, err := node.TLS(nil); err != nil {
			return usagef("--amqp-url: %s", err)
		}
	}
	return nil
}

// connectTimeout is for commands with a person waiting.
const connectTimeout = 10 * time.Second

// connect opens an ordinary connection to a primary: a standby has no locks, sessions and slots of relays, so nobody
// can look there, either. It can write even if the role is read-only by default. The caller closes it with closeConn.
// Path is pgdial.CatalogFirst for a command that changes rows, else pgdial.CatalogOnly.
func connect(
	ctx context.Context, address pgdial.Address, command string, path func(*pgconn.Config),
) (*pgx.Conn, error) {
	conn, err := connectWith(ctx, address, command, func(cfg *pgx.ConnConfig) {
		pgdial.AsWriter(&cfg.Config)
		path(&cfg.Config)
	})
	if err != nil {
		return nil, err
	}
	var standby bool
	err = conn.QueryRow(ctx, `SELECT pg_is_in_recovery()
		FROM pg_catalog.set_config('default_transaction_read_only', 'off', false)`).Scan(&standby)
	if err == nil && standby {
		err = problem.Standby{}
	}
	if err != nil {
		closeConn(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// connectWith lets the caller change the connection settings.
func connectWith(
	ctx context.Context, address pgdial.Address, command string, change func(*pgx.ConnConfig),
) (*pgx.Conn, error) {
	text, err := address.Valid() // it was valid at the start of the program
	if err != nil {
		return nil, fmt.Errorf("--database-url: %w", err)
	}
	cfg, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, errors.New("--database-url: not understood")
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "cdc-relay " + command
	}
	pgdial.AsUTF8(&cfg.Config)
	change(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		hint := address.Hint(err)
		failed := connectError{err, address.WithOrigin(pgdial.Text(err), err)}
		return nil, failure.WithHint(fmt.Errorf("database %q, user %q: %w", cfg.Database, cfg.User, failed), hint)
	}
	return conn, nil
}

// connectError is an error of pgx with another text.
type connectError struct {
	error
	text string
}

func (e connectError) Error() string { return e.text }
func (e connectError) Unwrap() error { return e.error }

// closeConn closes the connection within a short time, also if ctx is done.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	conn.Close(ctx) //nolint:errcheck // the server notices the end of the connection in any case
}

func where(cfg *pgx.ConnConfig) string {
	return fmt.Sprintf("%s:%d, database %q, user %q", cfg.Host, cfg.Port, cfg.Database, cfg.User)
}

// openDatabase reads the configuration of a command that sets up or removes something, and connects. The caller closes
// the connection with closeConn.
func (p *process) openDatabase(c *cli.Context, command string) (*config, *pgx.Conn, error) {
	cfg, err := p.resolveValid(c)
	if err != nil {
		return nil, nil, err
	}
	conn, err := connect(c.Context, cfg.database(), command, pgdial.CatalogOnly)
	return cfg, conn, err
}
