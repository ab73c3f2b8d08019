package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// tableFaults delay or fail statements without ending a connection.
func tableFaults() []Fault {
	return []Fault{
		{
			Name:  "postgres-transaction-held",
			About: "a transaction that has read and written stays open, so no dead row can be removed",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				return "", w.during(ctx, []string{beginWriting, "SELECT count(*) FROM " + w.Table.SQL()}, func() error {
					wait(ctx, hold)
					return nil
				})
			},
		},
		{
			Name:  "postgres-transaction-held-outbox",
			About: "a transaction that has inserted into the outbox stays open, and is then rolled back",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				insert := "INSERT INTO " + w.Table.SQL() +
					" (routing_key, payload) SELECT 'never', '{}' FROM generate_series(1, 100)"
				return "", w.during(ctx, []string{"BEGIN ISOLATION LEVEL REPEATABLE READ", insert}, func() error {
					wait(ctx, hold)
					return nil
				})
			},
		},
		{
			Name:  "postgres-table-locked",
			About: "the outbox is locked exclusively, as by pg_repack and many migrations",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				lock := "LOCK TABLE " + w.Table.SQL() + " IN ACCESS EXCLUSIVE MODE"
				return "", w.during(ctx, []string{"BEGIN", lock}, func() error {
					wait(ctx, hold)
					return nil
				})
			},
		},
		{
			Name:  "postgres-vacuum-full",
			About: "VACUUM FULL of the outbox, repeatedly",
			Run:   repeatedly("VACUUM FULL %s"),
		},
		{
			Name:  "postgres-reindex",
			About: "REINDEX of the outbox, locking and concurrently, repeatedly",
			Run:   repeatedly("REINDEX TABLE %s", "REINDEX TABLE CONCURRENTLY %s"),
		},
		{
			Name:       "postgres-settle-disk-full",
			Duplicates: ifTakenOver, // another relay publishes rows that the first relay could not delete
			About: "every UPDATE and DELETE of the outbox fails with 53100, disk_full: " +
				"by a trigger, in place of a full disk",
			Run: diskFull,
		},
	}
}

// beginWriting begins a transaction with a snapshot and a transaction id.
const beginWriting = `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()`

// during calls f within a transaction that is then rolled back. The statements begin it.
func (w *World) during(ctx context.Context, statements []string, f func() error) error {
	conn, err := w.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn) // rolls back
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	err = f()
	fixCtx, cancel := fixing(ctx)
	defer cancel()
	_, rollback := conn.Exec(fixCtx, "ROLLBACK")
	return errors.Join(err, rollback)
}

// repeatedly runs the statements with the table's name until the hold is over.
func repeatedly(statements ...string) func(context.Context, *World, *rand.Rand, time.Duration) (string, error) {
	return func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
		conn, err := w.Connect(ctx)
		if err != nil {
			return "", err
		}
		defer closeConn(ctx, conn)
		rounds := 0
		const atMost = 100 // a table that is always locked is another fault
		for began := time.Now(); time.Since(began) < hold && rounds < atMost && ctx.Err() == nil; rounds++ {
			for _, statement := range statements {
				if _, err := conn.Exec(ctx, fmt.Sprintf(statement, w.Table.SQL())); err != nil {
					return "", fmt.Errorf(statement+": %w", w.Table.SQL(), err)
				}
			}
			wait(ctx, hold/50)
		}
		return fmt.Sprintf("%d times", rounds), nil
	}
}

func diskFull(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	const function = `CREATE OR REPLACE FUNCTION cdc_relay_soak_disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device';
		END $$`
	trigger := "CREATE TRIGGER cdc_relay_soak_disk_full BEFORE UPDATE OR DELETE ON " + w.Table.SQL() +
		" FOR EACH STATEMENT EXECUTE FUNCTION cdc_relay_soak_disk_full()"
	err := w.Exec(ctx, function, trigger)
	return "", errors.Join(err, holdThen(ctx, hold, func(ctx context.Context) error {
		return w.Exec(ctx, "DROP FUNCTION IF EXISTS cdc_relay_soak_disk_full() CASCADE")
	}))
}
