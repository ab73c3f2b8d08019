package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// standbyFaults are the faults of a primary and its standby. Relays and writers know both, by an address with
// target_session_attrs=read-write.
func standbyFaults() []Fault {
	return []Fault{
		{
			Name: "postgres-promote", Needs: Standby, Duplicates: ifTakenOver, LosesUnanswered: true,
			About: "the primary ends, and after the hold its synchronous standby is promoted",
			Run:   promote,
		},
		{
			Name: "postgres-promote-failover-slot", Needs: Standby | Postgres17, Duplicates: ifTakenOver,
			About: "the same with a failover slot: the standby has everything that was streamed",
			Run:   promoteWithSlot,
		},
		{
			Name:         "postgres-promote-asynchronous",
			Needs:        Standby | Linux,
			Duplicates:   deletesLost,
			LosesCommits: true,
			About: "the primary is killed, and a standby that lags behind is promoted: " +
				"commits and deletes are lost",
			Run: promoteBehind,
		},
		{
			Name: "postgres-standby-freeze", Needs: Standby | Linux,
			About: "SIGSTOP of the synchronous standby, for which commits wait, and SIGCONT after the hold",
			Run: func(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
				standby, err := w.needStandby(ctx)
				if err != nil {
					return "", err
				}
				err = standby.Pause(ctx)
				return "", errors.Join(err, holdThen(ctx, hold, func(ctx context.Context) error {
					return errors.Join(standby.Resume(ctx), w.awaitSynchronous(ctx))
				}))
			},
		},
	}
}

func promote(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	if _, err := w.needStandby(ctx); err != nil {
		return "", err
	}
	end, how := (*services.Postgres).Kill, "killed"
	if random.IntN(2) == 0 {
		how = "stopped" // a switchover: the standby has everything
		end = func(server *services.Postgres, ctx context.Context) error { return server.Stop(ctx, services.Fast) }
	}
	primary, _ := w.pair.servers()
	err := end(primary, ctx)
	return how, errors.Join(err, w.failOver(ctx, hold))
}

// failOver promotes the standby of a dead primary after the hold. The next fault of the pair gives the new primary a
// standby. It has none until then, so the recovery depends only on the relays.
func (w *World) failOver(ctx context.Context, hold time.Duration) error {
	return holdThen(ctx, hold, func(ctx context.Context) error {
		_, standby := w.pair.servers()
		// Commits must not wait for a standby now. The settings came with the copied data.
		alone := []string{"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"}
		if w.postgresMajor >= 17 {
			alone = append([]string{"ALTER SYSTEM RESET synchronized_standby_slots"}, alone...)
		}
		if err := standby.Exec(ctx, "", alone...); err != nil {
			return err
		}
		if err := standby.Promote(ctx); err != nil {
			return err
		}
		w.pair.changePlaces()
		return nil
	})
}

// promoteWithSlot first replaces the relays' slot by a failover slot, as a DBA would.
func promoteWithSlot(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	if _, err := w.needStandby(ctx); err != nil {
		return "", err
	}
	if err := w.Stop(ctx); err != nil {
		return "", errors.Join(err, w.Start())
	}
	err := w.makeFailoverSlot(ctx)
	if err := errors.Join(err, w.Start()); err != nil {
		return "", err
	}
	if err := w.awaitSyncedSlot(ctx); err != nil {
		return "", err
	}
	if _, err := w.AwaitLeader(ctx); err != nil {
		return "", err
	}
	return promote(ctx, w, random, hold)
}

func (w *World) makeFailoverSlot(ctx context.Context) error {
	if err := w.dropSlot(ctx); err != nil {
		return err
	}
	create := fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, false, true)", w.Slot)
	if err := w.Exec(ctx, create); err != nil {
		return err
	}
	// Package services gives the physical slot the same name.
	return w.configure(ctx, "synchronized_standby_slots", standbyName)
}

func (w *World) awaitSyncedSlot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout,
		fmt.Errorf("the standby has no copy of the slot within %s", hangTimeout))
	defer cancel()
	_, standby := w.pair.servers()
	// The function fails if there is none.
	const failUnlessSynced = `SELECT 1 / count(*) FROM pg_replication_slots
		WHERE slot_name = '%s' AND synced AND NOT temporary AND invalidation_reason IS NULL`
	return poll(ctx, func() (bool, error) {
		return standby.Exec(ctx, "", fmt.Sprintf(failUnlessSynced, w.Slot)) == nil, nil
	})
}

// deletesLost returns how many duplicates are allowed if the promoted standby was about a second behind: messages
// delivered in that time, because their rows are back.
func deletesLost(w *World) int { return 5 * maxInFlight }

func promoteBehind(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	if _, err := w.needStandby(ctx); err != nil {
		return "", err
	}
	if err := w.configure(ctx, "synchronous_standby_names", ""); err != nil {
		return "", err
	}
	var walsender int
	const ofStandby = `SELECT pid FROM pg_stat_replication WHERE application_name = $1`
	if err := w.Query(ctx, &walsender, ofStandby, standbyName); err != nil {
		return "", errors.Join(fmt.Errorf("find the standby's walsender: %w", err), w.replicateSynchronously(ctx))
	}
	if err := syscall.Kill(walsender, syscall.SIGSTOP); err != nil {
		return "", errors.Join(fmt.Errorf("stop the standby's walsender: %w", err), w.replicateSynchronously(ctx))
	}
	behind := 200*time.Millisecond + time.Duration(random.Int64N(int64(time.Second)))
	wait(ctx, behind)
	primary, _ := w.pair.servers()
	err := primary.Kill(ctx)
	return fmt.Sprintf("%s behind", behind.Round(time.Millisecond)), errors.Join(err, w.failOver(ctx, hold))
}
