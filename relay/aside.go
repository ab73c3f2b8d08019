package relay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// asideRows are rows that nothing can be written of: a trigger, a foreign key or a constraint prevents it. Each was
// published, or rejected, and is not published again by this process.
type asideRows struct {
	rows []outbox.Settlement
	// told are those that were logged.
	told map[outbox.Ref]bool
	n    atomic.Int64 // how many there are, for health
}

// asideAgain is how often they are tried again.
const asideAgain = 10 * time.Second

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
	s.aside.rows = append(s.aside.rows, one)
	s.aside.n.Store(int64(len(s.aside.rows)))
	if len(s.aside.rows) == 1 {
		s.asideAt = time.Now().Add(asideAgain)
	}
	if s.aside.told[m.Ref()] {
		return
	}
	if s.aside.told == nil {
		s.aside.told = make(map[outbox.Ref]bool)
	}
	s.aside.told[m.Ref()] = true
	s.counts.aside.Inc()
	s.log.Error("row set aside: the database does not let it be changed; all other rows go on", "event", "row_set_aside",
		"id", m.ID, "message_id", m.MessageID.String(), "error", err,
		"hint", problem.Hint(problem.New("remove what prevents it: a trigger, a foreign key or a constraint on the table", "row set aside")))
}

// dueAside hands out the rows that are to be tried again.
func (s *settler) dueAside(now time.Time) []outbox.Settlement {
	if len(s.aside.rows) == 0 || now.Before(s.asideAt) {
		return nil
	}
	rows := s.aside.rows
	s.aside.rows = nil
	s.aside.n.Store(0)
	for _, one := range rows {
		s.core.TriedAgain(one)
	}
	return rows
}
