// Package outboxtest is for tests of code that writes to the outbox. A Recorder replaces a transaction; Enqueued
// returns what a real transaction has inserted; a Publisher replaces a broker.
package outboxtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Recorder replaces a transaction in tests without a database: outbox.Table.Enqueue and EnqueueSQL accept it. It keeps
// the enqueued messages of all tables. Other statements do nothing. The zero Recorder is ready to use; it is safe for
// concurrent use.
type Recorder struct {
	// Err is the error that every statement returns; nil: none. Set it before the first statement.
	Err error

	mu       sync.Mutex
	messages []Message
}

// Exec implements outbox.PgxExecer.
func (r *Recorder) Exec(_ context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	return pgconn.NewCommandTag("INSERT 0 1"), r.record(statement, args)
}

// ExecContext implements outbox.SQLExecer.
func (r *Recorder) ExecContext(_ context.Context, statement string, args ...any) (sql.Result, error) {
	return driver.RowsAffected(1), r.record(statement, args)
}

// Messages returns the enqueued messages in order.
func (r *Recorder) Messages() []Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.messages)
}

func (r *Recorder) record(statement string, args []any) error {
	if r.Err != nil {
		return r.Err
	}
	table := outbox.Table{}
	_, values, _ := strings.Cut(table.InsertSQL(), table.SQL())
	if !strings.HasSuffix(statement, values) {
		return nil
	}
	sent, err := ofArguments(args)
	if err != nil {
		return err
	}
	m, err := sent.message()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages = append(r.messages, m)
	return nil
}
