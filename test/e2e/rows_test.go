package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// row is a row to insert, by column. By default, routing_key is the test's queue and payload an empty object.
type row map[string]any

func (w *world) sql(table string, r row) (statement string, args []any) {
	full := row{"routing_key": w.queue}
	if _, binary := r["payload_bytes"]; !binary {
		full["payload"] = "{}"
	}
	maps.Copy(full, r)
	columns := slices.Sorted(maps.Keys(full))
	marks := make([]string, len(columns))
	for i, column := range columns {
		args = append(args, full[column])
		marks[i] = fmt.Sprintf("$%d", i+1)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) RETURNING message_id::text",
		table, strings.Join(columns, ", "), strings.Join(marks, ", ")), args
}

// insert inserts a row in its own transaction and returns its message_id.
func (w *world) insert(r row) string {
	w.t.Helper()
	statement, args := w.sql("outbox", r)
	return value[string](w, statement, args...)
}

func (w *world) tryExec(sql string, args ...any) error {
	_, err := w.db.Exec(w.t.Context(), sql, args...)
	return err
}

// await waits until a message has arrived, and returns its first delivery.
func (w *world) await(l *ledger, messageID string) amqp.Delivery {
	w.t.Helper()
	w.eventually("message "+messageID+" arrives", func() bool { return l.count(messageID) > 0 })
	for _, d := range l.all() {
		if d.MessageId == messageID {
			return d
		}
	}
	panic("counted, but not there")
}

// deadLetter are columns of the dead-letter table.
type deadLetter struct {
	Attempts                 int
	FailureReason, LastError string
}

func (w *world) awaitDeadLetter(messageID string) deadLetter {
	w.t.Helper()
	w.eventually("message "+messageID+" is dead-lettered", func() bool {
		return value[bool](w, `SELECT EXISTS (SELECT 1 FROM outbox_dead_letter WHERE message_id = $1)`, messageID)
	})
	if value[bool](w, `SELECT EXISTS (SELECT 1 FROM outbox WHERE message_id = $1)`, messageID) {
		w.t.Errorf("%s is in both tables", messageID)
	}
	return query[deadLetter](w, `SELECT attempts, failure_reason, coalesce(last_error, '') AS last_error
		FROM outbox_dead_letter WHERE message_id = $1`, messageID)[0]
}

func (w *world) deadLetters() int { return value[int](w, `SELECT count(*) FROM outbox_dead_letter`) }

func (w *world) noDeadLetters() {
	w.t.Helper()
	if n := w.deadLetters(); n != 0 {
		w.t.Errorf("%d dead letters: %s", n, value[string](w,
			`SELECT string_agg(DISTINCT failure_reason || ' ' || last_error, '; ') FROM outbox_dead_letter`))
	}
}

func (w *world) noAttempts() {
	w.t.Helper()
	if n := value[int](w, `SELECT count(*) FROM outbox WHERE attempts <> 0 OR last_error IS NOT NULL`); n != 0 {
		w.t.Errorf("%d rows were charged an attempt", n)
	}
}

func (w *world) emptied() {
	w.t.Helper()
	w.eventually("the table is empty", w.outboxEmpty)
}

func (w *world) copyRows(n int, routingKey string) {
	w.t.Helper()
	rows := make([][]any, n)
	for i := range rows {
		rows[i] = []any{routingKey, fmt.Sprintf(`{"copied": %d}`, i)}
	}
	into, columns := pgx.Identifier{"outbox"}, []string{"routing_key", "payload"}
	_, err := w.db.CopyFrom(w.t.Context(), into, columns, pgx.CopyFromRows(rows))
	must(w.t, "copy", err)
}

func (w *world) insertMany(rows int) {
	w.t.Helper()
	w.exec(`INSERT INTO outbox (routing_key, payload)
		SELECT $1, json_build_object('n', n, 'text', repeat('x', 100)) FROM generate_series(1, $2) n`, w.queue, rows)
}

// writeWAL writes this many MB of WAL that do not concern the outbox, with pg_logical_emit_message.
func (w *world) writeWAL(mb int) {
	w.t.Helper()
	w.exec(`SELECT count(pg_logical_emit_message(true, 'other tables', repeat('x', 1000000))) FROM generate_series(1, $1)`, mb)
}
