package relay

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// asideRows are rows that nothing can be written of: a trigger, a foreign key or a constraint prevents it. Each was
// published, or rejected, and is not published again by this process.
type asideRows struct {
	rows []outbox.Settlement
	// undeleted counts the published ones among them.
	undeleted int
	n         atomic.Int64            // how many there are, for health
	first     atomic.Pointer[[]int64] // the ids of up to ten of them, for health
	// suspended: nothing new is published, since what was published cannot be deleted.
	suspended atomic.Bool
}

const (
	// asideAgain is how often they are tried again.
	asideAgain = 10 * time.Second
	// mostUndeleted is how many published rows may be set aside: if there are more, it is the table that keeps them.
	mostUndeleted = 10
	// mostAside bounds the memory for all of them.
	mostAside = 10_000
	// suspendAfter is how long no statement may have settled anything though the server answers.
	suspendAfter = 2 * time.Second
)

// isolate settles the halves of a batch whose statement failed for one of its rows, until that row is alone. It is
// dead-lettered if that is what helps, else set aside.
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
	one := batch[0]
	if one.Decision.Action == outbox.Retry {
		one.Decision = outbox.Decision{Action: outbox.DeadLetter, Reason: outbox.ReasonInvalidRow, Detail: string(outbox.ReasonInvalidRow) + ": " + err.Error()}
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
		s.asideAt = time.Now().Add(asideAgain)
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
	s.counts.aside.Inc()
	if s.refusals.Allow() {
		s.log.Error("row set aside: the database does not let it be changed; other rows unaffected", "event", event.RowSetAside,
			"id", m.ID, "message_id", m.MessageID.String(), "error", err, "hint", asideHint)
	}
}

// text names the first of them.
func (a *asideRows) text() string {
	n, first := a.n.Load(), a.first.Load()
	if n == 0 || first == nil {
		return ""
	}
	return fmt.Sprintf("; %d rows set aside, with ids %s", n, strings.Trim(fmt.Sprint(*first), "[]"))
}

const asideHint = "remove what prevents it: a trigger, a foreign key or a constraint; psql lists them: \\d outbox"

func (s *settler) tooManyAside() bool {
	return s.aside.undeleted >= mostUndeleted || len(s.aside.rows) >= mostAside
}

// suspend stops publishing: each message more would be one that is published again after a restart.
func (s *settler) suspend(err error) {
	if s.aside.suspended.Swap(true) {
		return
	}
	s.core.Suspend(true)
	s.log.Error("publishing stopped: rows of published messages cannot be deleted; retrying until they can",
		"event", event.PublishingStopped, "error", err, "hint", orElse(problem.Hint(err), asideHint))
}

// resume ends that once rows can be deleted.
func (s *settler) resume() {
	if s.aside.suspended.Load() && !s.tooManyAside() {
		s.aside.suspended.Store(false)
		s.core.Suspend(false)
		s.log.Info("publishing resumed: rows of published messages can be deleted", "event", event.PublishingResumed)
	}
}

// dueAside hands out the rows that are to be tried again.
func (s *settler) dueAside(now time.Time) []outbox.Settlement {
	if len(s.aside.rows) == 0 || now.Before(s.asideAt) {
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
