package soak

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/test/program"
)

func killLeader(ctx context.Context, a *attempt) (fix, error) {
	leader, err := a.leader(ctx)
	if err != nil {
		return nil, err
	}
	return a.start, leader.kill(ctx)
}

func killLeaders(ctx context.Context, a *attempt) (fix, error) {
	const rounds = 3
	for range rounds {
		leader, err := a.leader(ctx)
		if err != nil {
			return a.start, err
		}
		program.Pause(ctx, a.upTo(a.hold/rounds))
		if err := errors.Join(leader.kill(ctx), leader.start()); err != nil {
			return a.start, err
		}
	}
	return nil, nil
}

func (a *attempt) shuffled() []*relay {
	relays := slices.Clone(a.relays)
	a.random.Shuffle(len(relays), func(i, j int) { relays[i], relays[j] = relays[j], relays[i] })
	return relays
}

func killStandby(ctx context.Context, a *attempt) (fix, error) {
	leader, err := a.awaitLeader(ctx)
	if err != nil {
		return nil, err
	}
	for _, relay := range a.shuffled() {
		if relay != leader && relay.running() != nil {
			a.detail = relay.name
			return a.start, relay.kill(ctx)
		}
	}
	return nil, errors.New("there is no standby")
}

func (w *world) killAll(ctx context.Context) error {
	return each(w.relays, func(relay *relay) error { return relay.kill(ctx) })
}

// stopAll also stops them in order if the run is interrupted.
func (w *world) stopAll(ctx context.Context) error {
	ctx, cancel := fixing(ctx)
	defer cancel()
	return w.stop(ctx)
}

func restartRolling(ctx context.Context, a *attempt) (fix, error) {
	orderly, cancel := fixing(ctx) // an interrupted run must not kill one
	defer cancel()
	for _, relay := range a.shuffled() {
		a.detail += relay.name + " "
		if err := errors.Join(relay.stop(orderly), a.start(orderly)); err != nil {
			return nil, err
		}
		if err := relay.awaitUp(orderly); err != nil {
			return nil, err
		}
		program.Pause(ctx, a.hold/time.Duration(len(a.relays)))
	}
	return nil, nil
}

// freezeLeader freezes the leader, half of the time for so long that another relay gets the slot.
func freezeLeader(ctx context.Context, a *attempt) (fix, error) {
	leader, err := a.leader(ctx)
	if err != nil {
		return nil, err
	}
	if err := leader.pause(); err != nil {
		return nil, err
	}
	if a.random.IntN(2) == 0 {
		const takenOver = runWalSenderTimeout + 3*time.Second
		a.detail += "for at least " + takenOver.String()
		program.Pause(ctx, takenOver-a.hold)
	}
	return leader.resume, nil
}

func freezeAll(_ context.Context, a *attempt) (fix, error) {
	return func(ctx context.Context) error {
		var errs []error
		for _, relay := range a.shuffled() {
			errs = append(errs, relay.resume(ctx))
			program.Pause(ctx, a.upTo(time.Second))
		}
		return errors.Join(errs...)
	}, each(a.relays, (*relay).pause)
}
