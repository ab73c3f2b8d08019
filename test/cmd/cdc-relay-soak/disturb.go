package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/load"
)

// recoveryTimeout is how long to wait after a fault for a new arrival. The verdict decides if that took too long.
const recoveryTimeout = time.Minute

// disturb causes faults until the duration is over or ctx ends. When it returns, all are fixed.
func (s *soak) disturb(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.duration)
	defer cancel()
	if len(s.opts.faults) == 0 {
		<-ctx.Done()
		return
	}
	plan, ids, skipped := newPlanner(s.opts), 0, make(map[string]bool)
	// It begins with a pause, to have data without faults for comparison.
	for rounds := 0; s.opts.rounds == 0 || rounds < s.opts.rounds; rounds++ {
		if !load.Pause(ctx, s.opts.pause) {
			return
		}
		var possible round
		for len(possible) == 0 && len(skipped) < len(s.opts.faults) {
			possible = s.possible(plan.next(), skipped)
		}
		if len(possible) == 0 {
			s.notMade = append(s.notMade, "none of the selected faults is possible here")
			return
		}
		recovered := s.make(ctx, possible, ids)
		ids += len(possible)
		s.awaitRecovery(ctx, recovered)
	}
}

// possible removes faults that are impossible here, and reports each of them once.
func (s *soak) possible(r round, skipped map[string]bool) round {
	var possible round
	for _, f := range r {
		can, why := s.world.Can(f.fault)
		switch {
		case can:
			possible = append(possible, f)
		case !skipped[f.fault.Name]:
			skipped[f.fault.Name] = true
			s.screen.note("left out: " + why)
		}
	}
	return possible
}

// make causes the faults of a round at the same time, and waits until they are fixed. recovered is closed when a
// message arrives that was committed after that.
func (s *soak) make(ctx context.Context, r round, ids int) (recovered <-chan struct{}) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for i, f := range r {
		id := ids + i + 1
		s.progress.faultBegan(id, f)
		s.recorder.FaultBegan(s.world.Tell(id, f.fault, "for "+f.hold.String()))
		group.Go(func() {
			detail, err := f.fault.Run(ctx, s.world, rand.New(rand.NewPCG(f.seed, 0)), f.hold)
			mu.Lock()
			defer mu.Unlock()
			s.recorder.FaultHealed(id)
			recovered = s.watch.await()
			s.progress.faultHealed(id, detail, err)
			if err != nil && ctx.Err() == nil {
				s.notMade = append(s.notMade, fmt.Sprintf("%s: %s", f.fault.Name, err))
			}
		})
	}
	group.Wait()
	return recovered
}

func (s *soak) awaitRecovery(ctx context.Context, recovered <-chan struct{}) {
	healed := time.Now()
	timeout := time.NewTimer(recoveryTimeout)
	defer timeout.Stop()
	select {
	case <-recovered:
		s.screen.note("recovered in " + short(time.Since(healed)))
	case <-timeout.C:
		s.screen.note(fmt.Sprintf("nothing new has arrived for %s", recoveryTimeout))
	case <-ctx.Done():
	}
}
