package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// runWalSenderTimeout is the setting of a private server: a frozen owner must lose the slot within the run.
const runWalSenderTimeout = 5 * time.Second

// settingFaults change the server's configuration for a while.
func settingFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-wal-sender-timeout", Duplicates: ifTakenOver,
			About: "wal_sender_timeout is lowered to a second while relays stream, and set back",
			Run:   setting("wal_sender_timeout", "1s", func(*World) string { return runWalSenderTimeout.String() }),
		},
		{
			Name:  "postgres-synchronous-standby-missing",
			About: "commits wait for a synchronous standby that does not exist: rows are streamed and stay invisible",
			Run:   setting("synchronous_standby_names", "nonexistent", (*World).synchronousStandbys),
		},
	}
}

func setting(
	name, bad string, good func(*World) string,
) func(context.Context, *World, *rand.Rand, time.Duration) (string, error) {
	return func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
		err := w.configure(ctx, name, bad)
		return "", errors.Join(err, holdThen(ctx, hold, func(ctx context.Context) error {
			return w.configure(ctx, name, good(w))
		}))
	}
}

// configure changes one setting of the private server, or resets it if value is "", and waits until the change is
// active.
func (w *World) configure(ctx context.Context, name, value string) error {
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	statement := "ALTER SYSTEM RESET " + name
	if value != "" {
		statement = "ALTER SYSTEM SET " + name + " = '" + value + "'"
	}
	var loaded time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&loaded); err != nil {
		return err
	}
	for _, sql := range []string{statement, "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return poll(ctx, func() (bool, error) {
		var inForce bool
		err := conn.QueryRow(ctx, "SELECT pg_conf_load_time() > $1", loaded).Scan(&inForce)
		return inForce, err
	})
}
