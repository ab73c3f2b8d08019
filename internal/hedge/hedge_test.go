package hedge

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errRefused = errors.New("refused")

// tries answers the nth try after its time, by its number or, where it fails, by errRefused. A try without a time hangs until
// it is cancelled.
type tries struct {
	after []time.Duration
	fails map[int]bool
	begun atomic.Int32
}

func (s *tries) try(ctx context.Context) (int, error) {
	n := int(s.begun.Add(1)) - 1
	var answer <-chan time.Time
	if n < len(s.after) && s.after[n] > 0 {
		answer = time.After(s.after[n])
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-answer:
	}
	if s.fails[n] {
		return 0, errRefused
	}
	return n, nil
}

func TestTheFirstAnswerCounts(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for name, one := range map[string]*struct {
		tries tries
		limit time.Duration
		want  int
		err   error
		took  time.Duration
		begun int
	}{
		"the only try": {tries: tries{after: []time.Duration{ms}}, want: 0, took: ms, begun: 1},
		"the only try fails": {
			tries: tries{after: []time.Duration{ms}, fails: map[int]bool{0: true}},
			err:   errRefused, took: ms, begun: 1,
		},
		"a fresh one is quicker": {tries: tries{after: []time.Duration{0, ms}}, want: 1, took: s + ms, begun: 2},
		"a fresh one fails": {
			tries: tries{after: []time.Duration{0, ms}, fails: map[int]bool{1: true}},
			err:   errRefused, took: s + ms, begun: 2,
		},
		"the server comes back later":       {tries: tries{after: []time.Duration{0, 0, 0, 0, ms}}, want: 4, took: 4*s + ms, begun: 5},
		"a slow server answers the first":   {tries: tries{after: []time.Duration{3500 * ms, 3 * s, 3 * s, 3 * s}}, want: 0, took: 3500 * ms, begun: 4},
		"nobody answers within the context": {limit: 2500 * ms, err: context.DeadlineExceeded, took: 2500 * ms, begun: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if one.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, one.limit)
					defer cancel()
				}
				began := time.Now()
				got, err := First(ctx, s, one.tries.try, func(n int) { t.Errorf("try %d was discarded", n) })
				if got != one.want || !errors.Is(err, one.err) {
					t.Errorf("%d, %v; want %d, %v", got, err, one.want, one.err)
				}
				if took := time.Since(began); took != one.took || int(one.tries.begun.Load()) != one.begun {
					t.Errorf("after %s and %d tries, want %s and %d", took, one.tries.begun.Load(), one.took, one.begun)
				}
			})
		})
	}
}

func TestWhatComesTooLateIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var discarded []int
		var begun atomic.Int32
		got, err := First(t.Context(), time.Second, func(context.Context) (int, error) {
			mine := int(begun.Add(1))
			time.Sleep(1500 * time.Millisecond) // it does not look at its context
			return mine, nil
		}, func(n int) { discarded = append(discarded, n) })
		if got != 1 || err != nil || len(discarded) != 1 || discarded[0] != 2 {
			t.Errorf("%d, %v, and %v was discarded; want the first, and the second discarded", got, err, discarded)
		}
	})
}
