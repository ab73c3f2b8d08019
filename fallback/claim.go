package fallback

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Transaction locks the rows of a claim. The caller ends it with Commit or Abandon.
type Transaction interface {
	// Locked returns the messages, the WAL position after the lock, and the server process that owned the slot then.
	Locked() (messages []*outbox.Message, position uint64, owner uint32)
	// Read reads the body of a large row, which the lock has left out. It takes as long as the body needs.
	Read(ctx context.Context) error
	// Alive is an error if the server has ended the transaction.
	Alive(ctx context.Context) error
	// Commit writes the decisions for the rows and ends the transaction. Rows without an answer are postponed.
	Commit(ctx context.Context, rows []outbox.Settlement, postpone time.Duration) error
	// Abandon ends the transaction and writes nothing.
	Abandon()
}

const (
	// mostClaims is how many claims may be open: while one writes, the others publish.
	mostClaims = 3
	// answerWait is how long a claim waits for the next answer, up to mostAnswerWait if the first answer was slow.
	answerWait, mostAnswerWait = 100 * time.Millisecond, time.Second
	// mostRunning is how long a claim starts new messages, mostOpen how long it stays open. Both must stay well below
	// store.IdleTimeout, after which the server ends the transaction.
	mostRunning, mostOpen = 2 * time.Second, 4 * time.Second
)

// claims counts the open claims, and the rows that all claims have locked so far.
type claims struct {
	open    atomic.Int32
	running sync.WaitGroup
	locked  atomic.Int64
	// quick: a large row was read in a short time.
	quick atomic.Bool
}

func (c *claims) free() int { return mostClaims - int(c.open.Load()) }

// Claiming reports whether claims are open.
func (s *Sweeper) Claiming() bool { return s.claims.open.Load() > 0 }

// Claimed counts the rows locked so far.
func (s *Sweeper) Claimed() int64 { return s.claims.locked.Load() }

// Wait returns when all claims have ended.
func (s *Sweeper) Wait() { s.claims.running.Wait() }

// openClaim is a claim of the core with the transaction that locks its rows.
type openClaim struct {
	*core.Claim
	sweeper *Sweeper
	tx      Transaction
}

// claim locks the chosen rows and publishes them.
func (s *Sweeper) claim(ctx context.Context, r Role, chosen *core.Claim) error {
	if len(chosen.Rows) == 0 {
		s.Apply(chosen.Done(false))
		return nil
	}
	ids := make([]int64, len(chosen.Rows))
	for i, row := range chosen.Rows {
		ids[i] = row.ID
	}
	_, err := s.lockAndPublish(ctx, r, chosen, func() (Transaction, error) {
		return s.Lock(ctx, ids, chosen.Large, r.fresh)
	})
	return err
}

// lockAndPublish starts the transaction of a claim and publishes the locked rows, if there is a transaction. Another
// goroutine then waits for the answers.
func (s *Sweeper) lockAndPublish(
	ctx context.Context, r Role, chosen *core.Claim, lock func() (Transaction, error),
) ([]*outbox.Message, error) {
	tx, alive, err := s.lock(ctx, chosen, lock)
	if err != nil || tx == nil {
		s.Apply(chosen.Done(false))
		return nil, err
	}
	messages, position, owner := tx.Locked()
	owned := r.owner == nil || owner == *r.owner
	s.Apply(chosen.Locked(core.Lock{
		Messages: messages, Position: position, Alive: alive, Epoch: r.Epoch, Owned: owned,
	}))
	if !owned && !r.Leader {
		_ = s.CheckSlot(ctx) // the next claim or check reports an error
	}
	if len(messages) == 0 {
		tx.Abandon()
		s.Apply(chosen.Done(false))
		return nil, nil
	}
	s.claims.open.Add(1)
	s.claims.running.Add(1)
	s.claims.locked.Add(int64(len(messages)))
	if open := (&openClaim{Claim: chosen, sweeper: s, tx: tx}); s.start != nil {
		s.start(open)
	} else {
		go open.finish(ctx)
	}
	return messages, nil
}

// noticeRestart marks all existing rows at the start and after a restart of the server: a crash can lose the traces of
// claims, and other relays that had claimed rows may still publish them.
func (s *Sweeper) noticeRestart(ctx context.Context) (noticed bool, err error) {
	restarts := s.Table.Restarts()
	if restarts == s.restarts {
		return false, nil
	}
	last, ok, err := s.Table.LastID(ctx)
	if err != nil {
		return false, err
	}
	if !ok {
		last = math.MaxInt64
	}
	s.Core.ServerRestarted(last)
	s.restarts = restarts
	return true, nil
}

// finish waits for the answers, writes them, and ends the claim. Ctx ends only the reading of a large row.
func (o *openClaim) finish(ctx context.Context) {
	if o.Large && !o.read(ctx) {
		return
	}
	o.await()
	rows := o.End()
	began := time.Now()
	err := o.tx.Commit(context.WithoutCancel(ctx), rows, o.sweeper.SendTimeout)
	if err == nil {
		o.sweeper.Committed(rows, time.Since(began))
	} else {
		o.sweeper.Failed(err)
	}
	o.close(err == nil)
}

// close returns all rows to the core, after they were written or not. Done wakes the sweeper, which then finds room for
// another claim.
func (o *openClaim) close(committed bool) {
	o.sweeper.claims.open.Add(-1)
	o.sweeper.Apply(o.Done(committed))
	o.sweeper.claims.running.Done()
}

// await returns when all messages have an answer, or when the missing answers are so late that the others must not
// wait.
func (o *openClaim) await() {
	began := time.Now()
	left := mostOpen // until the first answer
	timer := time.NewTimer(left)
	defer timer.Stop()
	for answered := false; o.Flying() > 0; {
		timer.Reset(min(left, mostOpen-time.Since(began)))
		select {
		case <-o.Progress:
		case <-timer.C:
			select {
			case <-o.Progress: // it came while this goroutine did not run
			default:
				return
			}
		}
		if !answered {
			answered = true
			left = min(max(answerWait, 4*time.Since(began)), mostAnswerWait)
		}
		if time.Since(began) > mostRunning {
			o.Cut()
		}
	}
}
