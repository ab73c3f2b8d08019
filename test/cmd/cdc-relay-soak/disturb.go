package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// recoveryTimeout is how long is waited after a fault until something new arrives. Whether that took too long is not
// decided here.
const recoveryTimeout = time.Minute

// disturb makes faults until the duration is over or ctx ends. It returns when all is fixed.
func (s *soak) disturb(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.duration)
	defer cancel()
	if len(s.opts.faults) == 0 {
		<-ctx.Done()
		return
	}
	plan, ids, skipped := newPlanner(s.opts), 0, make(map[string]bool)
	// With a calm at the start, so that there is something to compare with.
	for calm(ctx, s.opts.pause) {
		var possible round
		for len(possible) == 0 && len(skipped) < len(s.opts.faults) {
			possible = s.possible(plan.next(), skipped)
		}
		if len(possible) == 0 {
			s.screen.note("none of the faults can be made here")
			<-ctx.Done()
			return
		}
		recovered := s.make(ctx, possible, ids)
		ids += len(possible)
		s.awaitRecovery(ctx, recovered)
	}
}

// possible leaves out what cannot be made here, and says so once.
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

// make makes the faults of a round at the same time, and waits until they are fixed. What it returns is closed when
// something arrives that was committed after the last was fixed.
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
		s.progress.recovered(time.Since(healed))
	case <-timeout.C:
		s.screen.note(fmt.Sprintf("nothing new has arrived for %s", recoveryTimeout))
	case <-ctx.Done():
	}
}

// calm waits; false once ctx has ended.
func calm(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
