package store

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// extras remember the columns.
type extras struct {
	mu      sync.Mutex
	columns schema.ExtraColumns
	at      time.Time
}

// extrasFor is how long the list stays valid: a column may be added at any time.
const extrasFor = 10 * time.Second

// fill inserts the list into a statement. It updates the list, unless that is still valid; on an error, it stays.
func (e *extras) fill(ctx context.Context, db schema.Querier, table outbox.Table, sql string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at.IsZero() || time.Since(e.at) >= extrasFor {
		if columns, err := schema.ReadExtraColumns(ctx, db, table); err == nil {
			e.columns, e.at = columns, time.Now()
		}
	}
	return e.columns.Fill(sql)
}

func (e *extras) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = time.Time{}
}
