package pgdial_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

// The session's settings would stay in the sessions of other clients.
func TestAPoolerThatSharesServerProcessesIsRejected(t *testing.T) {
	database := services.Database(t)
	for settings, shares := range map[string]bool{
		"pool_mode = session":                                                false,
		"pool_mode = session\ndefault_pool_size = 1":                         false,
		"pool_mode = transaction":                                            true,
		"pool_mode = transaction\ndefault_pool_size = 1":                     true,
		"pool_mode = transaction\nmin_pool_size = 5\nserver_round_robin = 1": true,
		"pool_mode = statement":                                              true,
		"":                                                                   false, // no pooler
	} {
		address := database
		if settings != "" {
			address = services.PgBouncer(t, database, settings)
		}
		for _, path := range []func(*pgconn.Config){pgdial.CatalogOnly, pgdial.CatalogFirst} {
			config, err := pgconn.ParseConfig(address)
			services.Must(t, err)
			path(config)
			conn, err := pgconn.ConnectConfig(t.Context(), config)
			if shared := problem.Is(err) && strings.Contains(problem.Hint(err), "pool_mode = session"); shared != shares || !shares && err != nil {
				t.Errorf("%q: %v", settings, err)
			}
			if err == nil {
				_ = conn.Close(context.Background())
			}
		}
		if shares && strings.Contains(value(t, address, `SHOW search_path`), "pg_catalog") {
			t.Errorf("%q: other clients got the path", settings)
		}
	}
}

func value(t *testing.T, address, sql string) string {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), address)
	services.Must(t, err)
	defer conn.Close(context.Background())
	results, err := conn.Exec(t.Context(), sql).ReadAll()
	services.Must(t, err)
	return string(results[0].Rows[0][0])
}
