package fallback

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Run sweeps until stop is done. It finishes a started sweep under ctx. A missing table or column is an error.
func (s *Sweeper) Run(ctx, stop context.Context) error {
	failed := None // the last sweep that failed
	for stop.Err() == nil {
		s.Beat()
		kind, delay := s.Next()
		if kind == None {
			await(stop, min(delay, s.BeatEvery), s.Core.Wake)
			continue
		}
		began, claimed := time.Now(), s.Claimed()
		more, err := s.Once(ctx, kind)
		s.Log.Debug("scanned the table", "sweep", kind.String(), "claimed", s.Claimed()-claimed, "more", more,
			"took", time.Since(began).Round(time.Microsecond))
		if err == nil {
			if recovers(kind, failed) {
				s.Trouble.Over(event.SweepRecovered, "scanning the table again")
			}
			s.Retry.Reset()
			continue
		}
		failed = kind
		err, gone := s.Explain(ctx, err)
		if gone {
			return err
		}
		s.Trouble.Report(event.SweepFailing, "cannot scan the table: retrying; unpublished rows wait", err)
		await(stop, s.Retry.NextBackOff(), nil)
	}
	return nil
}

// recovers reports whether the success of a sweep ends an outage. A slot check does not read the table: it also
// succeeds while the table is locked.
func recovers(succeeded, failed Sweep) bool { return succeeded != SlotCheck || failed == SlotCheck }

func await(stop context.Context, atMost time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-stop.Done():
	case <-wake:
	case <-timer.C:
	}
}
