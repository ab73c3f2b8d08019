// Package hedge connects again while an attempt to connect hangs. A host that was away has dropped what was sent to it,
// and the kernel then waits 1, 2, 4, 8 seconds before it tries again: that late a server's return would be noticed.
package hedge

import (
	"context"
	"time"
)

// Every is how often a fresh attempt to connect is made while the first has no answer.
const Every = time.Second

// First runs try, and for as long as it has no answer a fresh try every so often, each in place of the fresh one before.
// The first is left its time, so that a server that is merely slow is not asked in vain. The first answer counts, be it
// an error; the other tries are cancelled and waited for, and what they still bring goes to discard.
//
// A try has to end soon after its context, which also ends when First returns.
func First[T any](ctx context.Context, every time.Duration, try func(context.Context) (T, error), discard func(T)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		value    T
		err      error
		replaced bool
	}
	answers := make(chan answer)
	running := 0
	start := func() context.CancelFunc {
		one, replace := context.WithCancel(ctx)
		running++
		go func() {
			value, err := try(one)
			answers <- answer{value, err, one.Err() != nil}
		}()
		return replace
	}
	start()
	replace := func() {}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			replace()
			replace = start()
		case a := <-answers:
			running--
			if a.err != nil && a.replaced && ctx.Err() == nil {
				continue
			}
			cancel()
			for ; running > 0; running-- {
				if late := <-answers; late.err == nil {
					discard(late.value)
				}
			}
			return a.value, a.err
		}
	}
}
