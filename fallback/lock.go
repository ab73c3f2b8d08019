package fallback

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// lock starts the transaction of a claim. Alive is when the transaction was certainly alive: after a slow lock, the
// server is asked whether it still has the transaction.
func (s *Sweeper) lock(
	ctx context.Context, chosen *core.Claim, lock func() (Transaction, error),
) (tx Transaction, alive time.Time, err error) {
	alive = s.Core.Clock()
	tx, err = lock()
	s.adapt(s.Core.Clock().Sub(alive), chosen.Rows, tx)
	if err != nil || tx == nil {
		return nil, alive, err
	}
	noticed, err := s.noticeRestart(ctx)
	switch {
	case err != nil:
	case noticed:
		err = errRestarted
	case outbox.Elapsed(alive, s.Core.Clock()) > longWalk:
		alive = s.Core.Clock()
		err = tx.Alive(ctx)
	}
	if err != nil {
		tx.Abandon()
	}
	return tx, alive, err
}

// errRestarted: the rows were chosen before. Those with a time must wait now.
var errRestarted = errors.New("the server was restarted or replaced")

// adapt records how long it took to lock and read rows. Few bytes say nothing about the pace.
func (s *Sweeper) adapt(took time.Duration, rows []outbox.Candidate, tx Transaction) {
	bytes := 0
	for _, row := range rows {
		bytes += row.Size
	}
	if len(rows) == 0 && tx != nil {
		messages, _, _ := tx.Locked()
		for _, m := range messages {
			bytes += m.Size()
		}
	}
	if took > longWalk || bytes > s.budget/2 {
		s.pace.took(took)
	}
	if s.claims.quick.Swap(false) {
		s.pace.took(0)
	}
}

// read reads the large row and publishes it. If that fails, the row is tried again after a poll interval, and others
// have their turn.
func (o *openClaim) read(ctx context.Context) (ok bool) {
	s := o.sweeper
	began := s.Core.Clock()
	err := o.tx.Read(ctx)
	alive := s.Core.Clock()
	if err == nil {
		s.claims.quick.Store(alive.Sub(began) < longWalk/4)
		err = o.tx.Alive(ctx)
	}
	if err == nil {
		s.Apply(o.Read(alive))
		return true
	}
	o.tx.Abandon()
	s.claims.open.Add(-1)
	o.ReadFailed()
	if ctx.Err() == nil {
		s.Failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(s.Planner.pollInterval):
		}
	}
	s.Apply(o.Done(false))
	s.claims.running.Done()
	return false
}

// pace is how often the size of a page or claim was doubled since the first one: while the statements are quick, and
// back if one takes too long.
type pace int

// mostDoubled is how often a size is doubled at most. Then a claim has as many bytes as the core allows.
const mostDoubled = pace(5)

func (p pace) of(most int) int { return max(most>>(mostDoubled-p), 1) }

// took adapts the size to the time of a statement.
func (p *pace) took(took time.Duration) {
	switch {
	case took > longWalk:
		*p = max(*p-1, 0)
	case took < longWalk/4:
		*p = min(*p+1, mostDoubled)
	}
}
