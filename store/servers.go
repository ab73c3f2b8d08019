package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// servers detects a restarted or replaced server. A connection that merely ended does not count, but the first one
// does: nobody knows what the server has lost before.
type servers struct {
	restarts atomic.Int64

	mu      sync.Mutex
	started time.Time
	// processes are the server's own processes. A crash ends all of them, but does not change the start time.
	processes []int32
}

// serverSQL needs no privilege: every role sees the process ids of others.
const serverSQL = `
SELECT pg_postmaster_start_time(), coalesce(pg_catalog.array_agg(pid), '{}')
FROM pg_stat_activity WHERE datid IS NULL AND usesysid IS NULL`

// opened runs for each new connection.
func (s *servers) opened(ctx context.Context, conn *pgx.Conn) error {
	var started time.Time
	var processes []int32
	if err := conn.QueryRow(ctx, serverSQL).Scan(&started, &processes); err != nil {
		return fmt.Errorf("ask when the server was started: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	same := started.Equal(s.started) && slices.ContainsFunc(processes, func(pid int32) bool {
		return slices.Contains(s.processes, pid)
	})
	if !same {
		s.restarts.Add(1)
	}
	s.started, s.processes = started, processes
	return nil
}
