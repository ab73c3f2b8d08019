package load

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// State reads the tables of a run on its own connections.
type State struct {
	// DatabaseURL is the address of the database itself, bypassing the proxies.
	DatabaseURL string
	Table       outbox.Table
	Run         string
}

const (
	// queryTimeout limits one look at the tables, however full they are.
	queryTimeout = 2 * time.Minute
	// lookEvery is how often the outbox is checked while it drains; less often if a check takes long.
	lookEvery = 100 * time.Millisecond
)

func (s State) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(s.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("read the address of the database: %w", err)
	}
	config.ConnectTimeout = connectTimeout
	config.RuntimeParams["application_name"] = "cdc-relay-soak state"
	return pgx.ConnectConfig(ctx, config)
}

// on calls f with a new connection.
func (s State) on(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = conn.Close(ctx) // nothing is lost with it
		<-conn.PgConn().CleanupDone()
	}()
	return f(ctx, conn)
}

// CreateTables creates soak_transaction, the business table, unless it exists. cdc-relay setup creates the outbox.
func (s State) CreateTables(ctx context.Context) error {
	return s.on(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx,
			`CREATE TABLE IF NOT EXISTS soak_transaction (run text, id bigint, PRIMARY KEY (run, id))`)
		if err != nil {
			return fmt.Errorf("create the table soak_transaction: %w", err)
		}
		return nil
	})
}

// drain says how far the outbox is from empty.
type drain struct {
	waiting  int   // rows in the outbox
	attempts int64 // of these rows
	writers  int   // sessions of writers whose last transaction may not have ended
}

func (s State) look(ctx context.Context) (d drain, err error) {
	err = s.on(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*), coalesce(sum(attempts), 0),
			(SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())
			FROM `+s.Table.SQL(), writerName).Scan(&d.waiting, &d.attempts, &d.writers)
	})
	return d, err
}

// AwaitDrained waits, after the writers stopped and while the relays run, until the outbox is empty and no transaction
// is open. It gives up if nothing has moved for the time quiet, and names the stuck rows. quiet must be longer than the
// longest wait between two attempts. It also ends with ctx.
func (s State) AwaitDrained(ctx context.Context, quiet time.Duration) error {
	var before drain
	moved := time.Now()
	for {
		began := time.Now()
		now, err := s.look(ctx)
		if err == nil {
			if now.waiting == 0 && now.writers == 0 {
				return nil
			}
			if now != before {
				before, moved = now, time.Now()
			}
		}
		if time.Since(moved) > quiet {
			return errors.Join(fmt.Errorf("nothing has left the outbox for %s: %s", quiet, s.stuck(ctx, before)), err)
		}
		if !Pause(ctx, max(lookEvery, 5*time.Since(began))) {
			return fmt.Errorf("wait for an empty outbox: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// stuck names the first rows of the outbox.
func (s State) stuck(ctx context.Context, d drain) string {
	text := fmt.Sprintf("%d rows wait, and %d writers have an open session", d.waiting, d.writers)
	err := s.on(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT format('id %s, message %s, key %s, %s attempts, available in %s, %s',
			id, message_id, coalesce(ordering_key, '-'), attempts, available_at - clock_timestamp(),
			coalesce(last_error, 'no error'))
			FROM `+s.Table.SQL()+` ORDER BY id LIMIT 5`)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		text += "; the oldest: " + strings.Join(lines, "; ")
		return err
	})
	if err != nil {
		text += "; " + err.Error()
	}
	return text
}

// Record reports the final state: the rows of the outbox and the dead-letter table, and the committed transactions. It
// reads everything in one snapshot, row by row.
func (s State) Record(ctx context.Context, record *history.Recorder) error {
	err := s.on(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
			return err
		}
		if err := s.recordRows(ctx, conn, record); err != nil {
			return err
		}
		var id int64
		rows, err := conn.Query(ctx, `SELECT id FROM soak_transaction WHERE run = $1 ORDER BY id`, s.Run)
		if err != nil {
			return err
		}
		return forEach(rows, []any{&id}, func() { record.Kept(id) })
	})
	if err != nil {
		return fmt.Errorf("read the final state: %w", err)
	}
	return nil
}

func (s State) recordRows(ctx context.Context, conn *pgx.Conn, record *history.Recorder) error {
	for _, sql := range []string{
		`SELECT message_id, false, attempts, '', coalesce(last_error, '') FROM ` + s.Table.SQL(),
		`SELECT message_id, true, attempts, failure_reason, coalesce(last_error, '')
		FROM ` + s.Table.DeadLetter().SQL(),
	} {
		rows, err := conn.Query(ctx, sql)
		if err != nil {
			return err
		}
		var id [16]byte
		var r history.Row
		into := []any{&id, &r.DeadLetter, &r.Attempts, &r.Reason, &r.LastError}
		err = forEach(rows, into, func() {
			r.Message = id
			record.Remaining(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func forEach(rows pgx.Rows, into []any, f func()) error {
	_, err := pgx.ForEachRow(rows, into, func() error {
		f()
		return nil
	})
	return err
}
