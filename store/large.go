package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// unreadable returns the server's error if it failed because of a value of a row: a limit such as 1 GB for a text, or a
// character that UTF-8 lacks. Otherwise it returns "".
func unreadable(err error) string {
	var answer *pgconn.PgError
	class := pgcode.Class(err)
	if (class == pgcode.DataException || class == pgcode.TooComplex) && errors.As(err, &answer) {
		return answer.Error()
	}
	return ""
}

// slowest is how many bytes a second move at least, between the server and this process, or from table to table. A
// dead connection must end some time.
const slowest = 128 << 10

// boundedFor is bounded for a statement that moves many bytes.
func (s *Store) boundedFor(ctx context.Context, bytes int) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.statementTimeout+time.Duration(bytes/slowest)*time.Second)
}

// moved is how many bytes of bodies the server copies to another table when it writes these rows.
func (s *Store) moved(rows []outbox.Settlement) (bytes int) {
	for _, one := range rows {
		if one.Decision.Action == outbox.DeadLetter || s.keep > 0 && one.Decision.Action == outbox.Delete {
			bytes += one.Message.Size() + one.Message.Unread
		}
	}
	return bytes
}
