package terminal

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// Watch repeats look until ctx is done, and calls display for each result when it is complete. On a terminal it
// overwrites the previous one. It returns nil when ctx is done, or the first error.
func (t Terminal) Watch(
	ctx context.Context, interval time.Duration, look func(context.Context) (display func() error, err error),
) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		display, err := look(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped by the user
		}
		if err != nil {
			return err
		}
		if show.IsTerminal(t.Out) {
			fmt.Fprint(show.Raw(t.Out), "\x1b[H\x1b[2J") // clear the screen and go to its top
		}
		if err := display(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
