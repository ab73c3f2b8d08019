package fault

import (
	"context"
	"math/rand/v2"
	"time"
)

// relayFaults are those of the relay itself.
func relayFaults() []Fault {
	return []Fault{
		{
			Name:    "relay-kill-leader",
			About:   "SIGKILL of the relay that streams; it is started again after the hold",
			Repeats: inFlight(1),
			Run:     killLeader,
		},
	}
}

func killLeader(ctx context.Context, w *World, _ *rand.Rand, hold time.Duration) (string, error) {
	leader, err := w.AwaitLeader(ctx, leaderPatience)
	if err != nil {
		return "", err
	}
	if err := leader.Kill(ctx); err != nil {
		return leader.Name, err
	}
	return leader.Name, holdThen(ctx, hold, func(context.Context) error { return w.Start() })
}

// leaderPatience is how long a fault that is for the leader waits until there is one.
const leaderPatience = 20 * time.Second
