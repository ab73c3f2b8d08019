package relay

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/store"
)

// commits logs if COMMIT waits for a synchronous standby: that of this relay hangs, or that of an inserting transaction
// keeps a published row invisible.
type commits struct {
	store *store.Store
	log   *outagelog.Log
	// hidden: a published row has been invisible for long.
	hidden atomic.Bool
}

// hungAfter is how long statements may take before the relay asks what COMMIT waits for.
const hungAfter = 5 * time.Second

// begin watches statements that write. The caller must call end.
func (c *commits) begin(ctx context.Context) (end func(error)) {
	ctx, cancel := context.WithCancel(ctx)
	asked := make(chan struct{})
	hangs := time.AfterFunc(hungAfter, func() {
		defer close(asked)
		c.report(ctx)
	})
	return func(err error) {
		if cancel(); !hangs.Stop() {
			<-asked
		}
		if err == nil && !c.hidden.Load() {
			c.over()
		}
	}
}

// invisible records whether a published row has been invisible for long.
func (c *commits) invisible(ctx context.Context, hidden bool) {
	switch c.hidden.Store(hidden); {
	case !hidden:
		c.over()
	case c.log.Current() == "":
		c.report(ctx)
	}
}

func (c *commits) report(ctx context.Context) {
	if waits := c.store.CommitWaits(ctx); waits != nil && ctx.Err() == nil {
		c.log.Report(event.CommitWaits, "published rows cannot be deleted: COMMIT hangs", waits)
	}
}

func (c *commits) over() { c.log.Over(event.CommitReturned, "COMMIT returns again") }
