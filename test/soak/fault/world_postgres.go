package fault

import (
	"context"

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

// PostgresProxies returns the proxies between all relays and Postgres.
func (w *World) PostgresProxies() []*services.Proxy {
	var proxies []*services.Proxy
	for _, relay := range w.Relays {
		proxies = append(proxies, relay.Postgres...)
	}
	return proxies
}
