package relay

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/store"
)

// Aside are the rows that can be neither deleted nor updated. This process does not publish them again.
type Aside struct {
	// Rows counts them, Published those that were published. Each of the others was rejected.
	Rows      int `json:"rows"`
	Published int `json:"published"`
	// First describes the first of them, at most 10. IDs are those that were published, at most 2,000.
	First []AsideRow `json:"first"`
	IDs   []int64    `json:"ids"`
}

// AsideRow is a row of Aside.
type AsideRow struct {
	ID        int64 `json:"id"`
	Published bool  `json:"published"`
	// Error is the server's text, Fix the command or SQL that may cure it. Both are one line.
	Error string `json:"error"`
	Fix   string `json:"fix"`
}

const (
	// shownAside is how many rows set aside Health describes, and listedAside how many ids it lists.
	shownAside  = 10
	listedAside = 2000
	// mostUndeleted is how many published rows may be set aside before publishing stops: with so many, the table itself
	// is at fault.
	mostUndeleted = 10
	// mostAside bounds the memory for these rows.
	mostAside = 10_000
	// suspendAfter is how long all statements may fail before publishing stops, although the server answers.
	suspendAfter = 2 * time.Second
)

// text lists the first ids.
func (a *Aside) text() string {
	var ids []string
	for _, row := range a.First {
		ids = append(ids, strconv.FormatInt(row.ID, 10))
	}
	switch a.Rows {
	case 0:
		return ""
	case 1:
		return "; 1 row set aside, with id " + ids[0]
	}
	return fmt.Sprintf("; %d rows set aside, with ids %s", a.Rows, strings.Join(ids, " "))
}

// isolate splits a batch whose statement failed for one of its rows or took too long. It dead-letters a row that fails
// alone if that may help, and otherwise sets it aside.
func (s *settler) isolate(ctx context.Context, batch []outbox.Settlement, err error) error {
	switch len(batch) {
	case 0:
		return nil
	case 1:
		return s.cannotChange(ctx, batch[0], err)
	}
	half := len(batch) / 2
	if err := s.settle(ctx, batch[:half]); err != nil {
		return err
	}
	return s.settle(ctx, batch[half:])
}

// cannotChange handles a row that cannot be deleted or updated as decided, although it is there.
func (s *settler) cannotChange(ctx context.Context, one outbox.Settlement, err error) error {
	if one.Decision.Action == outbox.Retry && one.Rejected {
		one.Decision = outbox.Decision{
			Action: outbox.DeadLetter,
			Reason: outbox.ReasonInvalidRow,
			Detail: string(outbox.ReasonInvalidRow) + ": " + pgdial.Text(err),
		}
		return s.settle(ctx, []outbox.Settlement{one})
	}
	s.setAside(ctx, one, err)
	return nil
}

func (s *settler) setAside(ctx context.Context, one outbox.Settlement, err error) {
	if m := one.Message; one.Fault == nil {
		one.Fault = &outbox.Fault{Error: problem.OneLine(pgdial.Text(err)), Fix: s.asideHint(ctx, err)}
		s.core.SetAside(one)
		m.Payload, m.Headers, m.Properties = nil, nil, nil
		s.observer.setAside(m, err, one.Fault.Fix)
	}
	s.waiting.add(one, time.Now())
	if s.tooManyAside() {
		s.suspend(ctx, err)
	}
}

// asideHint says what keeps a row from being changed: the SQL that removes it, if it is certain, or how to find it.
func (s *settler) asideHint(ctx context.Context, err error) string {
	if sql := s.store.Repair(ctx, err); sql != "" {
		return sql
	}
	return checkHint(s.table)
}

func checkHint(table outbox.Table) string {
	return problem.Command(table, "check") +
		"  # prints the trigger, foreign key or constraint that prevents the change, and the SQL that removes it"
}

func (s *settler) tooManyAside() bool {
	return s.waiting.undeleted >= mostUndeleted || s.waiting.aside >= mostAside
}

// suspend stops publishing: each further message would be published again after a restart.
func (s *settler) suspend(ctx context.Context, err error) {
	if !s.core.Suspend(true) {
		return
	}
	args := []any{"error", pgdial.Text(err)}
	hint := problem.Hint(err)
	if hint == "" && store.IsRowFault(err) {
		hint = s.asideHint(ctx, err)
	}
	if hint != "" {
		args = append(args, "hint", hint)
	}
	s.log.Error("publishing stopped: rows of published messages cannot be deleted; retrying until they can",
		append([]any{"event", event.PublishingStopped}, args...)...)
}

// resume continues publishing once rows can be deleted.
func (s *settler) resume() {
	if !s.tooManyAside() && s.core.Suspend(false) {
		s.log.Info("publishing resumed: rows of published messages can be deleted", "event", event.PublishingResumed)
	}
}
