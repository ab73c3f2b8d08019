package fallback

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Run sweeps until stop is done. It finishes a started sweep under ctx. A missing table or column is an error.
func (s *Sweeper) Run(ctx, stop context.Context) error {
	var reading sync.WaitGroup
	defer reading.Wait()
	bodies, end := context.WithCancel(stop)
	defer end()
	s.prove = s.certain
	reading.Go(func() { s.readBodies(bodies) })
	for stop.Err() == nil {
		s.Beat()
		kind, delay := s.Next()
		if kind == None {
			await(stop, min(delay, s.BeatEvery), s.Core.Wake)
			continue
		}
		if s.certain(stop); stop.Err() != nil {
			break
		}
		began, swept := time.Now(), s.swept
		more, err := s.Once(ctx, kind)
		s.Log.Debug("scanned the table", "sweep", kind.String(), "swept", s.swept-swept, "more", more,
			"took", time.Since(began).Round(time.Microsecond))
		if err == nil {
			s.Trouble.Over(event.SweepRecovered, "scanning the table again")
			s.Retry.Reset()
			continue
		}
		err, gone := s.Explain(ctx, err)
		if gone {
			return err
		}
		s.Trouble.Report(event.SweepFailing, "cannot scan the table: retrying; unpublished rows wait", err)
		await(stop, s.Retry.NextBackOff(), nil)
	}
	return nil
}

func await(stop context.Context, atMost time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-stop.Done():
	case <-wake:
	case <-timer.C:
	}
}
