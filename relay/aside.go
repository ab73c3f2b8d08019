package relay

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// asideRows are rows that can be neither deleted nor updated, because of a trigger, a foreign key or a constraint. Each
// was published or rejected. This process does not publish them again.
type asideRows struct {
	rows []outbox.Settlement
	// undeleted counts the published rows. again is when all are tried again.
	undeleted int
	again     time.Time
	n         atomic.Int64            // the number of rows, for health
	first     atomic.Pointer[[]int64] // the ids of up to ten rows, for health
	// suspended: publishing has stopped, because published rows cannot be deleted.
	suspended atomic.Bool
}

const (
	// asideAgain is how often these rows are tried again.
	asideAgain = 10 * time.Second
	// mostUndeleted is how many published rows may be set aside before publishing stops: with so many, the table itself
	// is at fault.
	mostUndeleted = 10
	// mostAside bounds the memory for these rows.
	mostAside = 10_000
	// suspendAfter is how long all statements may fail before publishing stops, although the server answers.
	suspendAfter = 2 * time.Second
)

// isolate splits a batch whose statement failed for one of its rows, until that row is alone. It dead-letters the row
// if that may help, and otherwise sets it aside.
func (s *settler) isolate(ctx context.Context, batch []outbox.Settlement, err error) ([]outbox.Settlement, error) {
	if len(batch) > 1 {
		first, failed := s.settle(ctx, batch[:len(batch)/2])
		if failed != nil {
			return nil, failed
		}
		second, failed := s.settle(ctx, batch[len(batch)/2:])
		return append(first, second...), failed
	}
	if len(batch) == 0 {
		return nil, nil
	}
	return s.cannotChange(ctx, batch[0], err)
}

// cannotChange handles a row that cannot be deleted or updated as decided, although it is there.
func (s *settler) cannotChange(ctx context.Context, one outbox.Settlement, err error) ([]outbox.Settlement, error) {
	if one.Decision.Action == outbox.Retry {
		one.Decision = outbox.Decision{Action: outbox.DeadLetter, Reason: outbox.ReasonInvalidRow, Detail: string(outbox.ReasonInvalidRow) + ": " + pgdial.Text(err)}
		return s.settle(ctx, []outbox.Settlement{one})
	}
	s.setAside(one, err)
	return nil, nil
}

func (s *settler) setAside(one outbox.Settlement, err error) {
	m := one.Message
	s.core.SetAside(one)
	m.Payload, m.Headers, m.Properties = nil, nil, nil
	told := one.Aside
	one.Aside = true
	s.aside.rows = append(s.aside.rows, one)
	s.aside.n.Store(int64(len(s.aside.rows)))
	if len(s.aside.rows) <= 10 {
		var ids []int64
		for _, aside := range s.aside.rows {
			ids = append(ids, aside.Message.ID)
		}
		s.aside.first.Store(&ids)
	}
	if len(s.aside.rows) == 1 {
		s.aside.again = time.Now().Add(asideAgain)
	}
	if one.Decision.Action == outbox.Delete {
		s.aside.undeleted++
	}
	if s.tooManyAside() {
		s.suspend(err)
	}
	if told {
		return
	}
	s.counts.SetAside()
	if s.rejections.limit.Allow() {
		s.log.Error("row set aside: the database does not let it be changed; other rows unaffected", "event", event.RowSetAside,
			"id", m.ID, "message_id", m.MessageID.String(), "error", pgdial.Text(err), "hint", s.asideHint(err))
	}
}

// text lists the first ids.
func (a *asideRows) text() string {
	n, first := a.n.Load(), a.first.Load()
	if n == 0 || first == nil {
		return ""
	}
	return fmt.Sprintf("; %d rows set aside, with ids %s", n, strings.Trim(fmt.Sprint(*first), "[]"))
}

// asideHint says how to find what keeps a row from being changed.
func (s *settler) asideHint(err error) string {
	if receiver := s.store.Receiver(err); receiver != "" {
		return s.table.Command("check") + "  # table " + receiver + " does not accept the row: its columns and constraints must be those of setup"
	}
	return asideHint(s.table)
}

func asideHint(table outbox.Table) string {
	return table.Command("check") + "  # names the trigger, foreign key or constraint that prevents the change, and the SQL that removes it"
}

func (s *settler) tooManyAside() bool {
	return s.aside.undeleted >= mostUndeleted || len(s.aside.rows) >= mostAside
}

// suspend stops publishing: each further message would be published again after a restart.
func (s *settler) suspend(err error) {
	if s.aside.suspended.Swap(true) {
		return
	}
	s.core.Suspend(true)
	args := []any{"error", pgdial.Text(err)}
	hint := problem.Hint(err)
	if hint == "" && store.IsRowFault(err) {
		hint = s.asideHint(err)
	}
	if hint != "" {
		args = append(args, "hint", hint)
	}
	s.log.Error("publishing stopped: rows of published messages cannot be deleted; retrying until they can",
		append([]any{"event", event.PublishingStopped}, args...)...)
}

// resume continues publishing once rows can be deleted.
func (s *settler) resume() {
	if s.aside.suspended.Load() && !s.tooManyAside() {
		s.aside.suspended.Store(false)
		s.core.Suspend(false)
		s.log.Info("publishing resumed: rows of published messages can be deleted", "event", event.PublishingResumed)
	}
}

// dueAside returns the rows to try again.
func (s *settler) dueAside(now time.Time) []outbox.Settlement {
	if len(s.aside.rows) == 0 || now.Before(s.aside.again) {
		return nil
	}
	rows := s.aside.rows
	s.aside.rows, s.aside.undeleted = nil, 0
	s.aside.n.Store(0)
	for _, one := range rows {
		s.core.TriedAgain(one)
	}
	return rows
}
