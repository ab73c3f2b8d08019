package fallback

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// lock starts the transaction of a claim. After a slow lock it asks whether the server still has the transaction: only
// from then on, publishFor is safe.
func (s *Sweeper) lock(ctx context.Context, r role, c *Claim, ids []int64, large bool) (Transaction, error) {
	c.alive = s.Clock()
	tx, err := s.Lock(ctx, ids, large, r.fresh)
	s.adapt(s.Clock().Sub(c.alive), c.rows)
	if err != nil {
		return nil, err
	}
	if err = s.noticeRestart(ctx); err == nil && outbox.Elapsed(c.alive, s.Clock()) > longWalk {
		err = c.confirm(ctx, tx)
	}
	if err != nil {
		tx.Abandon()
		return nil, err
	}
	return tx, nil
}

// adapt records how long it took to lock and read rows. Few bytes say nothing about the pace.
func (s *Sweeper) adapt(took time.Duration, rows []outbox.Candidate) {
	bytes := 0
	for _, row := range rows {
		bytes += row.Size
	}
	if took > longWalk || bytes > s.budget/2 {
		s.pace.took(took)
	}
	if s.claims.quick.Swap(false) {
		s.pace.took(0)
	}
}

// confirm asks whether the transaction is still alive.
func (c *Claim) confirm(ctx context.Context, tx Transaction) error {
	c.alive = c.sweeper.Clock()
	return tx.Alive(ctx)
}

// read reads the large row and publishes it. If that fails, the row is tried again after a poll interval, and others
// have their turn.
func (c *Claim) read(ctx context.Context) (ok bool) {
	began := c.sweeper.Clock()
	err := c.tx.Read(ctx)
	if err == nil {
		c.sweeper.claims.quick.Store(c.sweeper.Clock().Sub(began) < longWalk/4)
		err = c.confirm(ctx, c.tx)
	}
	if err == nil {
		c.sweeper.Apply(core.Out{Publish: c.start([]*outbox.Message{c.large}, true)})
		return true
	}
	c.tx.Abandon()
	c.sweeper.claims.open.Add(-1)
	c.sweeper.Core.LargeFailed()
	if ctx.Err() == nil {
		c.sweeper.Failed(err)
		select {
		case <-ctx.Done():
		case <-time.After(c.sweeper.Planner.pollInterval):
		}
	}
	c.done(core.Ended{NotLocked: c.rows})
	c.sweeper.claims.running.Done()
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
