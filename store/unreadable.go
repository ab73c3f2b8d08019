package store

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// unreadable are rows that the server could not send lately, each with its error. One of them makes the statement that
// locks a whole claim fail. So while there are any, claims read row by row. A row is not read again: building a text of
// 1 GB may take longer than a claim lasts.
type unreadable struct {
	mu   sync.Mutex
	rows map[outbox.Ref]unread
}

type unread struct {
	why string
	at  time.Time
}

// forgetUnread is when a row counts as readable again, in case that another relay has settled it.
const forgetUnread = time.Minute

// isUnreadable reports whether the server failed because of a value of a row: a limit such as 1 GB for a text, or a
// character that UTF-8 lacks.
func isUnreadable(err error) bool {
	class := pgcode.Class(err)
	return class == pgcode.DataException || class == pgcode.TooComplex
}

func (u *unreadable) any() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for ref, row := range u.rows {
		if time.Since(row.at) > forgetUnread {
			delete(u.rows, ref)
		}
	}
	return len(u.rows) > 0
}

func (u *unreadable) why(ref outbox.Ref) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.rows[ref].why
}

func (u *unreadable) add(ref outbox.Ref, why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.rows == nil {
		u.rows = make(map[outbox.Ref]unread)
	}
	u.rows[ref] = unread{why, time.Now()}
}

// settled forgets rows of a claim that leave the table.
func (u *unreadable) settled(rows []outbox.Settlement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range rows {
		if one.Decision.Action == outbox.DeadLetter {
			delete(u.rows, one.Message.Ref())
		}
	}
}

// readEach reads the locked rows one by one. It names the error in those that the server cannot send.
func (c *Claim) readEach(ctx context.Context) error {
	for i, m := range c.Messages {
		why := c.store.unreadable.why(m.Ref())
		if why == "" {
			read, err := c.read(ctx, m)
			switch {
			case err == nil:
				c.Messages[i] = read
				continue
			case !isUnreadable(err):
				return err
			}
			why = err.Error()
			c.store.unreadable.add(m.Ref(), why)
		}
		m.Unreadable = why
	}
	return nil
}

// read reads one locked row. A failure leaves the transaction usable.
func (c *Claim) read(ctx context.Context, m *outbox.Message) (*outbox.Message, error) {
	if _, err := c.conn.Exec(ctx, `SAVEPOINT reading`); err != nil {
		return nil, err
	}
	at := c.places[m.Ref()]
	var over *string
	read, err := NewScanner(c.store.headers, &over).Scan(c.conn.QueryRow(ctx, c.store.sql.read, at.table, at.ctid))
	end := `RELEASE reading`
	if err != nil {
		end = `ROLLBACK TO reading`
	}
	if _, failed := c.conn.Exec(ctx, end); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	limit(read, over)
	read.PossibleDuplicate, read.Superseded = m.PossibleDuplicate, m.Superseded
	c.setDeadline(read)
	return read, nil
}
