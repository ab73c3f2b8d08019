package bench

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// SiteConfig says what to measure, and where.
type SiteConfig struct {
	// Relay is the program cdc-relay, RelayArgs are more flags for its command run.
	Relay     string
	RelayArgs []string
	// Self is this program. With the argument "limit" it runs RunLimit.
	Self string
	// Folder is for logs; the caller removes it.
	Folder string
	// Settings are more settings of a private Postgres, such as "shared_buffers=1GB".
	Settings []string
	// Log receives a line for each slow step.
	Log func(line string)
}

// Site is where a benchmark runs: servers and programs.
type Site struct {
	SiteConfig
	Postgres *services.Postgres
	RabbitMQ *services.RabbitMQ

	runs int
}

// OpenSite provides the servers: those in CDC_RELAY_DATABASE_URL and CDC_RELAY_AMQP_URL, or else private ones. The
// caller closes it.
func OpenSite(ctx context.Context, config SiteConfig) (*Site, error) {
	s := &Site{SiteConfig: config}
	var err error
	postgres := services.Options{
		Way:      way(services.EnvDatabase),
		Settings: append([]string{"shared_buffers=256MB"}, config.Settings...),
		Log:      config.Log,
	}
	if s.Postgres, err = services.StartPostgres(ctx, postgres); err != nil {
		return nil, err
	}
	rabbitMQ := services.Options{Way: way(services.EnvAMQP), Log: config.Log}
	if s.RabbitMQ, err = services.StartRabbitMQ(ctx, rabbitMQ); err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	if err := s.inShortRuns(ctx); err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// way prefers the machine's own programs, whose processor time can be read, unless the environment says otherwise.
func way(address string) services.Way {
	if os.Getenv(address) != "" || os.Getenv(services.EnvWay) != "" {
		return ""
	}
	return services.Local
}

// inShortRuns turns timed work off on a private server: a checkpoint comes before each run. These are not among the
// settings of OpenSite, because settings of the command line cannot be changed while the server runs. So the user's
// settings override them.
func (s *Site) inShortRuns(ctx context.Context) error {
	if s.Postgres.Way == services.Environment {
		return nil
	}
	return s.Postgres.Exec(ctx, "",
		"ALTER SYSTEM SET autovacuum_naptime = '1h'", "ALTER SYSTEM SET checkpoint_timeout = '1h'",
		"ALTER SYSTEM SET max_wal_size = '16GB'", "SELECT pg_reload_conf()")
}

// Close stops the servers that were started.
func (s *Site) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var errs []error
	if s.RabbitMQ != nil {
		errs = append(errs, s.RabbitMQ.Close(ctx))
	}
	if s.Postgres != nil {
		errs = append(errs, s.Postgres.Close(ctx))
	}
	return errors.Join(errs...)
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// environment is the environment of this process without settings of a relay.
func environment(more ...string) []string {
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "CDC_RELAY_") {
			env = append(env, entry)
		}
	}
	return append(env, more...)
}
