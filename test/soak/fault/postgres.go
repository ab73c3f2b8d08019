package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// postgresFaults are the faults of the database and of the connections to it.
func postgresFaults() []Fault {
	return slices.Concat(
		serverFaults(), connectionFaults(), slotFaults(), foreignOwnerFaults(), settingFaults(), tableFaults(),
		standbyFaults(),
	)
}

// fastStopLimit is the limit for a fast stop of Postgres, whatever state the relays are in.
const fastStopLimit = 3 * time.Second

// serverFaults end, freeze or crash the server. A live relay remembers what it has in flight, so there are duplicates
// only if another relay takes the lead.
func serverFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-stop-immediate", Duplicates: ifTakenOver,
			About: "pg_ctl stop -m immediate, which is a crash, and a start after the hold",
			Run:   stopPostgres(services.Immediate),
		},
		{
			Name: "postgres-stop-fast", Duplicates: ifTakenOver,
			About: "pg_ctl stop -m fast, which must not wait for a relay, and a start after the hold",
			Run:   stopPostgres(services.Fast),
		},
		{
			Name: "postgres-kill", Needs: Linux, Duplicates: ifTakenOver,
			About: "SIGKILL of every process of the server, and a start after the hold",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				if err := w.primary().Kill(ctx); err != nil {
					return "", err
				}
				return "", holdThen(ctx, hold, w.primary().Start)
			},
		},
		{
			Name: "postgres-freeze", Needs: Linux, Duplicates: ifTakenOver,
			About: "SIGSTOP of every process of the server, and SIGCONT after the hold",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				err := w.primary().Pause(ctx)
				return "", errors.Join(err, holdThen(ctx, hold, w.primary().Resume))
			},
		},
		{
			Name: "postgres-kill-walsender", Needs: Linux, Duplicates: ifTakenOver,
			About: "SIGKILL of the walsender, for which Postgres ends all sessions and recovers",
			Run:   killWalsender,
		},
		{
			Name: "postgres-terminate-sessions", Duplicates: ifTakenOver,
			About: "pg_terminate_backend of every session of every relay, several times",
			Run:   terminateSessions,
		},
	}
}

func stopPostgres(mode services.StopMode) func(context.Context, *World, *rand.Rand, time.Duration) (string, error) {
	return func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
		began := time.Now()
		if err := w.primary().Stop(ctx, mode); err != nil {
			return "", err
		}
		took := time.Since(began)
		if mode == services.Fast && took > fastStopLimit {
			log := w.primary().Log(ctx)
			w.Violation(fmt.Sprintf("pg_ctl stop -m fast took %s; the log of Postgres ends:\n%s", took, log))
		}
		detail := fmt.Sprintf("stopped within %s", took.Round(time.Millisecond))
		return detail, holdThen(ctx, hold, w.primary().Start)
	}
}

func killWalsender(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	if _, err := w.AwaitLeader(ctx); err != nil {
		return "", err
	}
	var pid int
	const holder = `SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots WHERE slot_name = $1`
	if err := w.Query(ctx, &pid, holder, w.Slot); err != nil {
		return "", err
	}
	if pid == 0 {
		return "", errors.New("nobody owns the slot: there is no walsender to kill")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return "", fmt.Errorf("kill the walsender: %w", err)
	}
	return "", holdThen(ctx, hold, w.awaitPostgres)
}

// awaitPostgres waits until the database accepts writes.
func (w *World) awaitPostgres(ctx context.Context) error {
	var newest error
	err := poll(ctx, func() (bool, error) {
		var standby bool
		newest = w.Query(ctx, &standby, `SELECT pg_is_in_recovery()`)
		return newest == nil && !standby, nil
	})
	if err != nil {
		return fmt.Errorf("wait for Postgres: %w", errors.Join(err, newest))
	}
	return nil
}

func terminateSessions(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	const terminate = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE (application_name = 'cdc-relay' OR application_name LIKE 'cdc-relay %') AND pid <> pg_backend_pid()`
	const rounds = 5
	ended := 0
	for range rounds {
		var n int
		if err := w.Query(ctx, &n, terminate); err != nil {
			return "", err
		}
		ended += n
		wait(ctx, time.Duration(random.Int64N(int64(2*hold)/rounds+1)))
	}
	return fmt.Sprintf("%d sessions", ended), nil
}
