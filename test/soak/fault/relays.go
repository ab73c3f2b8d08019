package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// relayFaults are the faults of the relays.
func relayFaults() []Fault {
	const rounds = 3
	return []Fault{
		{
			Name: "relay-kill-leader", Duplicates: inFlight(1),
			About: "SIGKILL of the relay that streams; it is started again after the hold",
			Run:   killLeader,
		},
		{
			Name: "relay-kill-leader-again-and-again", Duplicates: inFlight(rounds),
			About: "SIGKILL of the relay that streams, three times; each is started again at once",
			Run: func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
				return killLeaders(ctx, w, random, hold, rounds)
			},
		},
		{
			Name: "relay-kill-standby", Needs: SeveralRelays,
			About:      "SIGKILL of a standby; it is started again after the hold",
			Duplicates: inFlight(1), // it publishes due messages
			Run:        killStandby,
		},
		{
			Name:       "relay-kill-all",
			About:      "SIGKILL of every relay at once; they are started again after the hold",
			Duplicates: func(w *World) int { return len(w.Relays) * maxInFlight },
			Run:        killAll,
		},
		{
			Name:  "relay-stop-all",
			About: "SIGTERM to every relay at once; they are started again after the hold",
			Run:   stopAll,
		},
		{
			Name:  "relay-restart-rolling",
			About: "SIGTERM to one relay after the other, each started again before the next one stops",
			Run:   restartRolling,
		},
		{
			Name: "relay-freeze-leader",
			About: "SIGSTOP of the relay that streams, and SIGCONT after the hold: " +
				"another one may have taken over",
			Duplicates: inFlight(1),
			Unmarked:   true,
			Run:        freezeLeader,
		},
		{
			Name:  "relay-freeze-all",
			About: "SIGSTOP of every relay, and SIGCONT after the hold, in random order",
			// The broker may close the connections of the frozen relays before their confirms are read.
			Duplicates: inFlight(1),
			Unmarked:   true,
			Run:        freezeAll,
		},
		outOfMemory(),
	}
}

func killLeader(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", err
	}
	if err := leader.Kill(ctx); err != nil {
		return leader.Name, err
	}
	return leader.Name, holdThen(ctx, hold, func(context.Context) error { return w.Start() })
}

func killLeaders(
	ctx context.Context, w *World, random *rand.Rand, hold time.Duration, rounds int,
) (detail string, err error) {
	var names []string
	for range rounds {
		leader, err := w.AwaitLeader(ctx)
		if err != nil {
			return strings.Join(names, ", "), errors.Join(err, w.Start())
		}
		wait(ctx, time.Duration(random.Int64N(int64(hold)/int64(rounds)+1)))
		if err := leader.Kill(ctx); err != nil {
			return strings.Join(names, ", "), err
		}
		names = append(names, leader.Name)
		if err := leader.Start(); err != nil {
			return strings.Join(names, ", "), err
		}
	}
	return strings.Join(names, ", "), nil
}

// standbys returns the relays that run and do not stream, in random order.
func (w *World) standbys(ctx context.Context, random *rand.Rand) ([]*Relay, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return nil, err
	}
	var standbys []*Relay
	for _, relay := range w.shuffled(random) {
		if relay != leader && relay.Running() {
			standbys = append(standbys, relay)
		}
	}
	if len(standbys) == 0 {
		return nil, errors.New("there is no standby")
	}
	return standbys, nil
}

func (w *World) shuffled(random *rand.Rand) []*Relay {
	relays := make([]*Relay, len(w.Relays))
	for to, from := range random.Perm(len(w.Relays)) {
		relays[to] = w.Relays[from]
	}
	return relays
}

func killStandby(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	standbys, err := w.standbys(ctx, random)
	if err != nil {
		return "", err
	}
	if err := standbys[0].Kill(ctx); err != nil {
		return standbys[0].Name, err
	}
	return standbys[0].Name, holdThen(ctx, hold, func(context.Context) error { return w.Start() })
}

func killAll(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	if err := each(w.Relays, func(relay *Relay) error { return relay.Kill(ctx) }); err != nil {
		return "", err
	}
	return "", holdThen(ctx, hold, func(context.Context) error { return w.Start() })
}

func stopAll(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	orderly, cancel := fixing(ctx) // an interrupted run must not kill them
	defer cancel()
	if err := w.Stop(orderly); err != nil {
		return "", errors.Join(err, w.Start())
	}
	return "", holdThen(ctx, hold, func(context.Context) error { return w.Start() })
}

func restartRolling(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	order := w.shuffled(random)
	orderly, cancel := fixing(ctx) // an interrupted run must not kill one
	defer cancel()
	var names []string
	for _, relay := range order {
		names = append(names, relay.Name)
		err := relay.Stop(orderly)
		if err := errors.Join(err, w.Start()); err != nil {
			return strings.Join(names, ", "), err
		}
		if err := relay.awaitUp(orderly); err != nil {
			return strings.Join(names, ", "), err
		}
		wait(ctx, hold/time.Duration(len(order)))
	}
	return strings.Join(names, ", "), nil
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
func freezeLeader(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil {
		return "", err
	}
	const takenOver = runWalSenderTimeout + 3*time.Second
	if random.IntN(2) == 0 {
		hold = max(hold, takenOver)
	}
	if err := leader.Pause(); err != nil {
		return leader.Name, err
	}
	detail := fmt.Sprintf("%s, for %s", leader.Name, hold)
	return detail, holdThen(ctx, hold, func(context.Context) error { return leader.Resume() })
}

func freezeAll(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
	if err := each(w.Relays, (*Relay).Pause); err != nil {
		return "", errors.Join(err, each(w.Relays, (*Relay).Resume))
	}
	return "", holdThen(ctx, hold, func(ctx context.Context) error {
		var errs []error
		for _, relay := range w.shuffled(random) {
			errs = append(errs, relay.Resume())
			wait(ctx, time.Duration(random.Int64N(int64(time.Second))))
		}
		return errors.Join(errs...)
	})
}
