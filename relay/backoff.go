package relay

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// newBackoff retries after 50 ms to 1 s, so that the relay works again within two seconds after an outage.
func newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 50 * time.Millisecond
	b.MaxInterval = time.Second
	b.Multiplier = 2
	b.RandomizationFactor = 0.2
	return b
}

// newUnreadBackoff is for streams that end before they reach their start. Each of them restarts the sweeps, so the
// waits become longer.
func newUnreadBackoff() *backoff.ExponentialBackOff {
	b := newBackoff()
	b.MaxInterval = 20 * time.Second
	return b
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
