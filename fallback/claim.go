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

// claims counts the open claims.
type claims struct {
	open    atomic.Int32
	running sync.WaitGroup
}

func (c *claims) free() int { return mostClaims - int(c.open.Load()) }

// Claiming reports whether claims are open.
func (s *Sweeper) Claiming() bool { return s.claims.open.Load() > 0 }

// Claimed counts the rows locked so far. Only the goroutine of Once may call it.
func (s *Sweeper) Claimed() int { return s.claimed }

// Wait returns when all claims have ended.
func (s *Sweeper) Wait() { s.claims.running.Wait() }

// claim locks rows and publishes them. Finish then runs in another goroutine. Claimed counts rows published or
// superseded.
func (s *Sweeper) claim(ctx context.Context, r role, rows []outbox.Candidate, mostRows, mostBytes int) (claimed int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	claim := s.Core.Begin(rows, mostRows, mostBytes)
	ids := claim.Rows()
	if len(ids) == 0 {
		s.drop(claim)
		return 0, nil
	}
	tx, err := s.Lock(ctx, ids, r.fresh)
	if err == nil {
		if err = s.noticeRestart(ctx); err != nil {
			tx.Abandon()
		}
	}
	if err != nil {
		s.Core.Locked(claim, nil, 0, false)
		s.drop(claim)
		return 0, err
	}
	messages, position, owner := tx.Locked()
	valid := s.Core.View().Epoch == r.view.Epoch && (r.owner == nil || owner == *r.owner)
	if !valid {
		s.lostTo(ctx, r)
	}
	out := s.Core.Locked(claim, messages, position, valid)
	if len(messages) == 0 {
		tx.Abandon()
		s.drop(claim)
		return 0, nil
	}
	s.claims.open.Add(1)
	s.claims.running.Add(1)
	s.claimed += len(messages)
	s.Apply(out)
	claimed = len(out.Publish)
	for _, m := range messages {
		if m.Superseded && valid {
			claimed++
		}
	}
	s.Start(claim, tx)
	return claimed, nil
}

// lostTo records that another process owns the slot than this relay believed.
func (s *Sweeper) lostTo(ctx context.Context, r role) {
	if r.view.Leader {
		s.Core.Doubt()
		return
	}
	_ = s.CheckSlot(ctx) // the next claim or check reports an error
}

// drop ends a claim that has locked nothing.
func (s *Sweeper) drop(claim *core.Claim) { s.Core.Ended(claim, s.Core.End(claim), false) }

// noticeRestart marks all existing rows after a restart of the server: a crash can lose the traces of claims.
func (s *Sweeper) noticeRestart(ctx context.Context) error {
	restarts := s.Table.Restarts()
	if restarts == s.restarts {
		return nil
	}
	last, ok, err := s.Table.LastID(ctx)
	if err != nil {
		return err
	}
	if !ok {
		last = math.MaxInt64
	}
	s.Core.ServerRestarted(last)
	s.restarts = restarts
	return nil
}

// Finish waits for the answers to a claim, writes them, and ends it.
func (s *Sweeper) Finish(ctx context.Context, claim *core.Claim, tx Transaction) {
	defer s.claims.running.Done()
	defer s.claims.open.Add(-1)
	s.await(claim)
	ending := s.Core.End(claim)
	began := time.Now()
	err := tx.Commit(ctx, ending.All(), s.SendTimeout)
	if err == nil {
		s.Committed(ending.All(), time.Since(began))
	}
	s.Apply(s.Core.Ended(claim, ending, err == nil))
}

// await returns when all messages of a claim have an answer, or when the missing answers are so late that the others
// must not wait.
func (s *Sweeper) await(claim *core.Claim) {
	began := time.Now()
	left := mostOpen // until the first answer
	timer := time.NewTimer(left)
	defer timer.Stop()
	for answered := false; ; {
		if flying, _ := s.Core.Open(claim); flying == 0 {
			return
		}
		timer.Reset(min(left, mostOpen-time.Since(began)))
		select {
		case <-claim.Progress:
		case <-timer.C:
			select {
			case <-claim.Progress: // it came while this goroutine did not run
			default:
				return
			}
		}
		if !answered {
			answered = true
			left = min(max(answerWait, 4*time.Since(began)), mostAnswerWait)
		}
		if time.Since(began) > mostRunning {
			s.Core.CutRuns(claim)
		}
	}
}
