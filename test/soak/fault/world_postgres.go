package fault

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// runDatabase is the database of a run on a private server.
const runDatabase = "soak"

func (w *World) providePostgres(ctx context.Context) error {
	w.Database = w.DatabaseURL
	if w.Database == "" {
		server, err := services.StartPostgres(ctx,
			services.Options{Private: true, Settings: w.PostgresSettings, Log: w.Log})
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
	}
	const about = `SELECT current_setting('server_version_num')::int / 10000, current_setting('is_superuser')::bool`
	return w.QueryRow(ctx, about).Scan(&w.postgresMajor, &w.superuser)
}

// PostgresProxies returns the proxies between all relays and Postgres.
func (w *World) PostgresProxies() []*services.Proxy {
	var proxies []*services.Proxy
	for _, relay := range w.Relays {
		proxies = append(proxies, relay.Postgres...)
	}
	return proxies
}

// plainPostgres reports whether the proxies can see which connections are for replication: they cannot with TLS.
func (w *World) plainPostgres() bool {
	config, err := pgx.ParseConfig(w.Database)
	return err == nil && config.TLSConfig == nil
}
