package fault

import (
	"context"
	"errors"
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
	if err := w.configure(ctx, "wal_sender_timeout", runWalSenderTimeout.String()); err != nil {
		return err
	}
	if w.Standby {
		if err := w.provideStandby(ctx); err != nil {
			return err
		}
	}
	return w.Query(ctx, &w.postgresMajor, `SELECT current_setting('server_version_num')::int / 10000`)
}

// standbyName is the application_name of a standby started by package services.
const standbyName = "standby"

// provideStandby starts a standby, makes every commit wait for it, and returns an address with both servers.
func (w *World) provideStandby(ctx context.Context) error {
	standby, err := w.Postgres.StartStandby(ctx)
	if err != nil {
		return err
	}
	w.standby = standby
	both, err := url.Parse(w.Database)
	if err != nil {
		return err
	}
	both.Host += "," + standby.Addr()
	query := both.Query()
	query.Set("target_session_attrs", "read-write")
	both.RawQuery = query.Encode()
	w.Database = both.String()
	return w.replicateSynchronously(ctx)
}

// replicateSynchronously makes commits wait for the standby, and returns when the standby streams.
func (w *World) replicateSynchronously(ctx context.Context) error {
	if err := w.configure(ctx, "synchronous_standby_names", standbyName); err != nil {
		return err
	}
	return w.awaitSynchronous(ctx)
}

func (w *World) awaitSynchronous(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout,
		fmt.Errorf("the standby does not stream within %s", hangTimeout))
	defer cancel()
	return poll(ctx, func() (bool, error) {
		var streams bool
		err := w.Query(ctx, &streams, `SELECT EXISTS (SELECT FROM pg_stat_replication
			WHERE application_name = $1 AND state = 'streaming' AND sync_state = 'sync')`, standbyName)
		return streams, err
	})
}

// synchronousStandbys is the value of synchronous_standby_names without a fault.
func (w *World) synchronousStandbys() string {
	if w.standby == nil || w.alone {
		return ""
	}
	return standbyName
}

func (w *World) closePostgres(ctx context.Context) error {
	err := w.Postgres.Close(ctx)
	if w.standby != nil {
		err = errors.Join(w.standby.Close(ctx), err)
	}
	return err
}

// needStandby makes the former primary a standby of the new one, unless it is one, and waits until commits wait for it.
func (w *World) needStandby(ctx context.Context) (*services.Postgres, error) {
	if !w.alone {
		return w.standby, w.awaitSynchronous(ctx)
	}
	if err := w.standby.Follow(ctx, w.Postgres); err != nil {
		return nil, err
	}
	w.alone = false
	return w.standby, w.replicateSynchronously(ctx)
}

// On a private broker a run has its own virtual host, and the relays log in as their own user: faults take permissions
// from it that writers and consumers keep.
const (
	runVHost      = "soak"
	relayUser     = "relay"
	relayPassword = "relay"
)

// clusterNodes is the smallest cluster that can lose its majority.
const clusterNodes = 3

func (w *World) provideRabbitMQ(ctx context.Context) error {
	if err := w.startRabbitMQ(ctx); err != nil {
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

func (w *World) startRabbitMQ(ctx context.Context) (err error) {
	options := services.Options{Private: true, Log: w.Log}
	if !w.Cluster {
		w.RabbitMQ, err = services.StartRabbitMQ(ctx, options)
		return err
	}
	w.nodes, err = services.StartRabbitMQCluster(ctx, clusterNodes, options)
	if err == nil {
		w.RabbitMQ = w.nodes.Nodes[0]
	}
	return err
}

func (w *World) closeRabbitMQ(ctx context.Context) error {
	switch {
	case w.nodes != nil:
		return w.nodes.Close(ctx)
	case w.RabbitMQ != nil:
		return w.RabbitMQ.Close(ctx)
	}
	return nil
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
