package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func stopPostgres(mode services.StopMode) begin {
	return func(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
		// A fast stop has a limit, whatever state the relays are in.
		const fastStopLimit = 3 * time.Second
		began := time.Now()
		if err := w.Postgres.Stop(ctx, mode); err != nil {
			return "", nil, err
		}
		took := time.Since(began)
		if mode == services.Fast && took > fastStopLimit {
			log := w.Postgres.Log(ctx)
			w.Violation(fmt.Sprintf("pg_ctl stop -m fast took %s; the log of Postgres ends:\n%s", took, log))
		}
		return fmt.Sprintf("stopped within %s", took.Round(time.Millisecond)), w.Postgres.Start, nil
	}
}

func killPostgres(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	if err := w.Postgres.Kill(ctx); err != nil {
		return "", nil, err
	}
	return "", w.Postgres.Start, nil
}

func freezePostgres(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	return "", w.Postgres.Resume, w.Postgres.Pause(ctx)
}

func killWalsender(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	if _, err := w.AwaitLeader(ctx); err != nil {
		return "", nil, err
	}
	var pid int
	const holder = `SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = $1`
	if err := w.Query(ctx, &pid, holder, w.Slot); err != nil {
		return "", nil, err
	}
	if pid == 0 {
		return "", nil, errors.New("nobody owns the slot: there is no walsender to kill")
	}
	return "", func(ctx context.Context) error { // the server recovers by itself
		var standby bool
		err := w.Query(ctx, &standby, `SELECT pg_is_in_recovery()`)
		if err == nil && standby {
			err = errors.New("the server accepts no writes")
		}
		return err
	}, syscall.Kill(pid, syscall.SIGKILL)
}

func terminateSessions(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, fix, error) {
	const terminate = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE (application_name = 'cdc-relay' OR application_name LIKE 'cdc-relay %') AND pid <> pg_backend_pid()`
	const rounds = 5
	ended := 0
	for range rounds {
		var n int
		if err := w.Query(ctx, &n, terminate); err != nil {
			return "", nil, err
		}
		ended += n
		wait(ctx, time.Duration(random.Int64N(int64(2*hold)/rounds+1)))
	}
	return fmt.Sprintf("%d sessions", ended), nil, nil
}

// runWalSenderTimeout is the setting of a private server: a frozen owner must lose the slot within the run.
const runWalSenderTimeout = 5 * time.Second

// setting changes one setting of the server for a while.
func setting(name, bad, good string) begin {
	return func(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
		setBack := func(ctx context.Context) error { return w.configure(ctx, name, good) }
		return "", setBack, w.configure(ctx, name, bad)
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

// beginWriting begins a transaction with a snapshot and a transaction id.
const beginWriting = `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()`

// transaction is open during the hold, and is then rolled back. In the second statement, %s is the outbox.
func transaction(beginning, statement string) begin {
	return func(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
		conn, err := w.Connect(ctx)
		if err != nil {
			return "", nil, err
		}
		rollBack := func(ctx context.Context) error {
			closeConn(ctx, conn)
			return nil
		}
		_, err = conn.Exec(ctx, beginning)
		if err == nil && statement != "" {
			_, err = conn.Exec(ctx, fmt.Sprintf(statement, w.Table.SQL()))
		}
		return "", rollBack, err
	}
}

// repeatedly runs the statements with the table's name until the hold is over.
func repeatedly(statements ...string) begin {
	return func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, fix, error) {
		rounds := 0
		const atMost = 100 // a table that is always locked is another fault
		for began := time.Now(); time.Since(began) < hold && rounds < atMost && ctx.Err() == nil; rounds++ {
			for _, statement := range statements {
				if err := w.Exec(ctx, fmt.Sprintf(statement, w.Table.SQL())); err != nil {
					return "", nil, err
				}
			}
			wait(ctx, hold/50)
		}
		return fmt.Sprintf("%d times", rounds), nil, nil
	}
}

func diskFull(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	const function = `CREATE OR REPLACE FUNCTION cdc_relay_soak_disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device';
		END $$`
	trigger := "CREATE TRIGGER cdc_relay_soak_disk_full BEFORE UPDATE OR DELETE ON " + w.Table.SQL() +
		" FOR EACH STATEMENT EXECUTE FUNCTION cdc_relay_soak_disk_full()"
	return "", func(ctx context.Context) error {
		return w.Exec(ctx, "DROP FUNCTION IF EXISTS cdc_relay_soak_disk_full() CASCADE")
	}, w.Exec(ctx, function, trigger)
}
