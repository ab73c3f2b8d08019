package fault

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// runDatabase is the database of a run on a private server.
const runDatabase = "soak"

func (w *World) providePostgres(ctx context.Context) error {
	server, err := services.StartPostgres(ctx, services.Options{Private: true, Log: w.Log})
	if err != nil {
		return err
	}
	w.Postgres, w.Database = server, server.URL(runDatabase)
	if err := server.Exec(ctx, "", "CREATE DATABASE "+runDatabase); err != nil {
		return err
	}
	return w.configure(ctx, "wal_sender_timeout", runWalSenderTimeout.String())
}

// On a private broker a run has its own virtual host, and the relays log in as their own user: faults take permissions
// from it that writers and consumers keep.
const (
	runVHost      = "soak"
	relayUser     = "relay"
	relayPassword = "relay"
)

func (w *World) provideRabbitMQ(ctx context.Context) (err error) {
	if w.RabbitMQ, err = services.StartRabbitMQ(ctx, services.Options{Private: true, Log: w.Log}); err != nil {
		return err
	}
	if err := w.RabbitMQ.AddVHost(ctx, runVHost); err != nil {
		return err
	}
	if err := w.RabbitMQ.AddUser(ctx, relayUser, relayPassword); err != nil {
		return err
	}
	w.Broker = w.RabbitMQ.URL(runVHost)
	address, err := url.Parse(w.Broker)
	if err != nil {
		return err
	}
	address.User = url.UserPassword(relayUser, relayPassword)
	w.relayBroker = address.String()
	return w.permit(ctx)
}

// connectTimeout limits one attempt to reach a server.
const connectTimeout = 10 * time.Second

// Connect opens a connection to the run's database, bypassing the proxies. The caller closes it.
func (w *World) Connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(w.Database)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["application_name"] = "cdc-relay-soak fault" // must not look like a relay's
	return pgx.ConnectConfig(ctx, config)
}

// Exec runs statements in the run's database, each in its own transaction.
func (w *World) Exec(ctx context.Context, statements ...string) error {
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// Query reads one row of one column on a new connection.
func (w *World) Query(ctx context.Context, into any, sql string, args ...any) error {
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	return conn.QueryRow(ctx, sql, args...).Scan(into)
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
