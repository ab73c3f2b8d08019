package soak

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func (w *world) startPostgres(ctx context.Context) error { return w.postgres.Start(ctx) }

func stopPostgres(mode services.StopMode) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		// A fast stop has a limit, whatever state the relays are in.
		const fastStopLimit = 3 * time.Second
		began := time.Now()
		if err := a.postgres.Stop(ctx, mode); err != nil {
			return nil, err
		}
		took := time.Since(began).Round(time.Millisecond)
		if mode == services.Fast && took > fastStopLimit {
			log := a.postgres.Log(ctx)
			a.violation(fmt.Sprintf("pg_ctl stop -m fast took %s; the log of Postgres ends:\n%s", took, log))
		}
		a.detail = "stopped within " + took.String()
		return a.postgres.Start, nil
	}
}

func killWalsender(ctx context.Context, a *attempt) (fix, error) {
	if _, err := a.awaitLeader(ctx); err != nil {
		return nil, err
	}
	var pid int
	const owner = `SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = $1`
	if err := a.query(ctx, &pid, owner, slot); err != nil {
		return nil, err
	}
	if pid == 0 {
		return nil, errors.New("nobody owns the slot: there is no walsender to kill")
	}
	return func(ctx context.Context) error { // the server recovers by itself
		var standby bool
		err := a.query(ctx, &standby, `SELECT pg_is_in_recovery()`)
		if err == nil && standby {
			err = errors.New("the server accepts no writes")
		}
		return err
	}, syscall.Kill(pid, syscall.SIGKILL)
}

func terminateSessions(ctx context.Context, a *attempt) (fix, error) {
	const rounds = 5
	for range rounds {
		err := a.exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'cdc-relay' OR application_name LIKE 'cdc-relay %'`)
		if err != nil {
			return nil, err
		}
		program.Pause(ctx, a.upTo(2*a.hold/rounds))
	}
	return nil, nil
}

// setting changes one setting of the server for a while.
func setting(name, bad, good string) begin {
	return undone(func(w *world, ctx context.Context) error { return w.configure(ctx, name, bad) },
		func(w *world, ctx context.Context) error { return w.configure(ctx, name, good) })
}

// configure changes one setting of the server, or resets it if value is "", and waits until the change is active.
func (w *world) configure(ctx context.Context, name, value string) error {
	statement := "ALTER SYSTEM RESET " + name
	if value != "" {
		statement = "ALTER SYSTEM SET " + name + " = '" + value + "'"
	}
	conn, err := pgx.Connect(ctx, w.postgres.URL(""))
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	var loaded time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&loaded); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return program.Poll(ctx, func() (active bool, err error) {
		err = conn.QueryRow(ctx, "SELECT pg_conf_load_time() > $1", loaded).Scan(&active)
		return active, err
	})
}

// beginWriting begins a transaction with a snapshot and a transaction id.
const beginWriting = `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()`

// openTransaction is open during the hold, and is then rolled back.
func openTransaction(statements string) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		conn, err := pgx.Connect(ctx, a.database)
		if err != nil {
			return nil, err
		}
		_, err = conn.Exec(ctx, statements)
		return func(ctx context.Context) error {
			closeConn(ctx, conn)
			return nil
		}, err
	}
}

// repeatedly runs the statements until the hold is over.
func repeatedly(statements ...string) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		const atMost = 100 // a table that is always locked is another fault
		began := time.Now()
		for n := 0; time.Since(began) < a.hold && n < atMost && ctx.Err() == nil; n++ {
			if err := a.exec(ctx, statements...); err != nil {
				return nil, err
			}
			program.Pause(ctx, a.hold/50)
		}
		return nil, nil
	}
}

func (w *world) fillDisk(ctx context.Context) error {
	return w.exec(ctx, `CREATE OR REPLACE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device';
		END $$`,
		"CREATE TRIGGER disk_full BEFORE UPDATE OR DELETE ON "+outboxTable+
			" FOR EACH STATEMENT EXECUTE FUNCTION disk_full()")
}

func (w *world) emptyDisk(ctx context.Context) error {
	return w.exec(ctx, "DROP FUNCTION IF EXISTS disk_full() CASCADE")
}
