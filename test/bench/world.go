package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// world is what belongs to one run: a database with an outbox, a slot, and a queue.
type world struct {
	site     *Site
	name     string // of database, slot, publication and queue
	program  string // the cdc-relay to measure
	database string
	amqp     string
	table    outbox.Table
	spec     Spec
	control  *pgx.Conn
}

// newWorld creates a database, names a queue, and creates what the relay needs. The caller closes it.
func (r *run) newWorld(ctx context.Context) (*world, error) {
	s := r.site
	s.runs++
	w := &world{
		site:    s,
		program: r.Program,
		name:    fmt.Sprintf("cdc_relay_bench_%d_%d", time.Now().Unix(), s.runs),
		amqp:    s.RabbitMQ.URL(""),
		table:   outbox.Table{Schema: "public", Name: "outbox"},
		spec:    r.spec,
	}
	w.spec.Queue = w.name
	if err := s.Postgres.Exec(ctx, "", "CREATE DATABASE "+w.name); err != nil {
		return nil, fmt.Errorf("create a database: %w", err)
	}
	w.database = s.Postgres.URL(w.name)
	err := w.command(ctx, "setup")
	if err == nil {
		w.control, err = pgx.Connect(ctx, w.database)
	}
	if err == nil && r.spec.Bytes >= uncompressedFrom {
		_, err = w.control.Exec(ctx, "ALTER TABLE "+w.table.SQL()+" ALTER payload SET STORAGE EXTERNAL")
	}
	if err != nil {
		return nil, errors.Join(err, w.close(ctx))
	}
	return w, nil
}

// uncompressedFrom is the size in bytes from which payloads are stored without compression. Postgres takes some 20 ms
// to try to compress a megabyte, so one writer would limit what a relay streams.
const uncompressedFrom = 100_000

// command runs the measured cdc-relay until it ends.
func (w *world) command(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, w.program, args...)
	cmd.Env = w.relayEnvironment()
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cdc-relay %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

func (w *world) relayEnvironment() []string {
	return environment(
		"CDC_RELAY_DATABASE_URL="+w.database, "CDC_RELAY_AMQP_URL="+w.amqp, "CDC_RELAY_SLOT="+w.name,
		"CDC_RELAY_PUBLICATION="+w.name, "CDC_RELAY_LOG_FORMAT=json", "CDC_RELAY_TABLE="+w.table.SQL(),
	)
}

// rest does the maintenance that the server would do later by itself.
func (w *world) rest(ctx context.Context) error {
	for _, statement := range []string{"VACUUM (ANALYZE)", "CHECKPOINT"} {
		if _, err := w.control.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func (w *world) logFile(name string) string {
	return filepath.Join(w.site.Folder, w.name+"-"+name+".log")
}

// close removes everything.
func (w *world) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if w.control != nil {
		closeConn(w.control)
	}
	return errors.Join(w.dropDatabase(ctx), deleteQueue(w.amqp, w.spec.Queue))
}

// dropDatabase drops the slot first, which WITH (FORCE) would not do.
func (w *world) dropDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.site.Postgres.URL(""))
	if err != nil {
		return err
	}
	defer closeConn(conn)
	const endWalsender = `SELECT count(pg_terminate_backend(active_pid, 5000)) FROM pg_replication_slots
		WHERE database = $1 AND active_pid IS NOT NULL`
	const dropSlot = `SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots WHERE database = $1`
	for _, statement := range []string{endWalsender, dropSlot} {
		if _, err := conn.Exec(ctx, statement, w.name); err != nil {
			return fmt.Errorf("drop the slot of %s: %w", w.name, err)
		}
	}
	if _, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+w.name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop the database %s: %w", w.name, err)
	}
	return nil
}
