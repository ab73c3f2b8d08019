package program

import (
	"context"
	"time"
)

// Pause waits. It returns false once ctx has ended.
func Pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Poll calls ask until it returns true or an error, or ctx ends.
func Poll(ctx context.Context, ask func() (bool, error)) error {
	for {
		if yes, err := ask(); yes || err != nil {
			return err
		}
		if !Pause(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}
