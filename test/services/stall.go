package services

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// StallCommits makes each commit with synchronous_commit = on wait for a standby that does not exist, until release is
// called. It returns when a commit waits: the setting takes effect some time after the reload.
func (p *Postgres) StallCommits(t testing.TB) (release func()) {
	t.Helper()
	Must(t, p.Exec(t.Context(), "", `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.commitUntil(ctx) }()
	conn, err := pgx.Connect(ctx, p.URL(""))
	Must(t, err)
	await.Until(t, "a commit waits for the standby", func() (waits bool) {
		const sql = `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`
		Must(t, conn.QueryRow(ctx, sql).Scan(&waits))
		return waits
	})
	Must(t, conn.Close(ctx))
	return func() {
		t.Helper()
		Must(t, p.Exec(t.Context(), "", `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`))
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

// commitUntil makes one small commit after the other until ctx is done.
func (p *Postgres) commitUntil(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err = conn.Exec(ctx, `SET synchronous_commit = 'on'`); err != nil {
		return err
	}
	for err == nil {
		_, err = conn.Exec(ctx, `SELECT pg_logical_emit_message(true, 'stall', '')`)
	}
	return err
}
