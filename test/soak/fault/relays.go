package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// start starts the relays that do not run.
func (w *World) start(context.Context) error { return w.Start() }

func killLeader(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", nil, err
	}
	return leader.Name, w.start, leader.Kill(ctx)
}

const killRounds = 3

func killLeaders(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (names string, _ fix, _ error) {
	for range killRounds {
		leader, err := w.AwaitLeader(ctx)
		if err != nil {
			return names, w.start, err
		}
		wait(ctx, time.Duration(random.Int64N(int64(hold)/killRounds+1)))
		if err := errors.Join(leader.Kill(ctx), leader.Start()); err != nil {
			return names, w.start, err
		}
		names += leader.Name + " "
	}
	return names, nil, nil
}

func (w *World) shuffled(random *rand.Rand) []*Relay {
	relays := slices.Clone(w.Relays)
	random.Shuffle(len(relays), func(i, j int) { relays[i], relays[j] = relays[j], relays[i] })
	return relays
}

func killStandby(ctx context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", nil, err
	}
	for _, relay := range w.shuffled(random) {
		if relay != leader && relay.Running() {
			return relay.Name, w.start, relay.Kill(ctx)
		}
	}
	return "", nil, errors.New("there is no standby")
}

func killAll(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	return "", w.start, each(w.Relays, func(relay *Relay) error { return relay.Kill(ctx) })
}

func stopAll(ctx context.Context, w *World, _ *rand.Rand, _ time.Duration) (string, fix, error) {
	ctx, cancel := fixing(ctx) // an interrupted run must not kill them
	defer cancel()
	return "", w.start, w.Stop(ctx)
}

func restartRolling(
	ctx context.Context, w *World, random *rand.Rand, hold time.Duration,
) (names string, _ fix, _ error) {
	orderly, cancel := fixing(ctx) // an interrupted run must not kill one
	defer cancel()
	for _, relay := range w.shuffled(random) {
		names += relay.Name + " "
		if err := errors.Join(relay.Stop(orderly), w.Start()); err != nil {
			return names, nil, err
		}
		if err := relay.awaitUp(orderly); err != nil {
			return names, nil, err
		}
		wait(ctx, hold/time.Duration(len(w.Relays)))
	}
	return names, nil, nil
}

// awaitUp waits until a started relay streams or is a standby, as a rolling update does.
func (r *Relay) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startupGrace,
		fmt.Errorf("%s is not ready within %s", r.Name, startupGrace))
	defer cancel()
	return poll(ctx, func() (bool, error) {
		status, _, err := r.get(ctx, "/readyz", time.Second)
		return err == nil && status == 200, nil
	})
}

// freezeLeader freezes the leader, half of the time for so long that another relay gets the slot.
func freezeLeader(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, fix, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := leader.Pause(); err != nil {
		return leader.Name, nil, err
	}
	detail := leader.Name
	if random.IntN(2) == 0 {
		const takenOver = runWalSenderTimeout + 3*time.Second
		detail += ", for at least " + takenOver.String()
		wait(ctx, takenOver-hold)
	}
	return detail, leader.resume, nil
}

func (r *Relay) resume(context.Context) error { return r.Resume() }

func freezeAll(_ context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
	return "", func(ctx context.Context) error {
		var errs []error
		for _, relay := range w.shuffled(random) {
			errs = append(errs, relay.Resume())
			wait(ctx, time.Duration(random.Int64N(int64(time.Second))))
		}
		return errors.Join(errs...)
	}, each(w.Relays, (*Relay).Pause)
}
