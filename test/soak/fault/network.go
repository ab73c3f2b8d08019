package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// wire is all connections through a proxy, or those of one kind.
type wire interface {
	Cut()
	Refuse()
	Accept()
	BlackHole(directions ...services.Direction)
	Resume(directions ...services.Direction)
}

// postgresWire returns the connections of a relay to Postgres: those of a kind, or all for "".
func postgresWire(kind string) func(*Relay) wire {
	return func(r *Relay) wire {
		if kind == "" {
			return r.Postgres
		}
		return r.Postgres.Only(kind)
	}
}

func rabbitmqWire(r *Relay) wire { return r.RabbitMQ }

// someRelays chooses all relays or one of them.
func (w *World) someRelays(random *rand.Rand) (who string, relays []*Relay) {
	if n := random.IntN(2 * len(w.Relays)); n < len(w.Relays) && len(w.Relays) > 1 {
		return w.Relays[n].Name, w.Relays[n : n+1]
	}
	return "all relays", w.Relays
}

// network disturbs the connections of some relays, and repairs them after the hold.
func network(of func(*Relay) wire, disturb, repair func(wire)) begin {
	return func(_ context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
		who, relays := w.someRelays(random)
		for _, relay := range relays {
			disturb(of(relay))
		}
		return who, func(context.Context) error {
			for _, relay := range relays {
				repair(of(relay))
			}
			return nil
		}, nil
	}
}

func refuse(of func(*Relay) wire) begin {
	return network(of, func(w wire) { w.Refuse(); w.Cut() }, wire.Accept)
}

// blackHole loses what is sent in the directions; without any, in both.
func blackHole(of func(*Relay) wire, directions ...services.Direction) begin {
	return network(of, func(w wire) { w.BlackHole(directions...) }, func(w wire) { w.Resume(directions...) })
}

// cut resets the connections so many times.
func cut(of func(*Relay) wire, rounds int) begin {
	return func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, fix, error) {
		who, relays := w.someRelays(random)
		for range rounds {
			for _, relay := range relays {
				of(relay).Cut()
			}
			wait(ctx, hold/time.Duration(rounds))
		}
		return who, nil, nil
	}
}

// late delays what is sent to or from Postgres by 0.3 to 5 s.
func late(directions ...services.Direction) begin {
	return func(_ context.Context, w *World, random *rand.Rand, _ time.Duration) (string, fix, error) {
		who, relays := w.someRelays(random)
		by := 300*time.Millisecond + time.Duration(random.Int64N(int64(4700*time.Millisecond)))
		delay := func(d time.Duration) {
			for _, relay := range relays {
				relay.Postgres.Delay(d, directions...)
			}
		}
		delay(by)
		return fmt.Sprintf("%s, by %s", who, by.Round(time.Millisecond)), func(context.Context) error {
			delay(0)
			return nil
		}, nil
	}
}

// terminated ends the walsender some time after a fault has begun.
func terminated(f begin) begin {
	return func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, fix, error) {
		detail, fix, err := f(ctx, w, random, hold)
		if wait(ctx, time.Duration(random.Int64N(int64(hold)))); err != nil || ctx.Err() != nil {
			return detail, fix, err
		}
		return detail, fix, w.Exec(ctx,
			"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '"+w.Slot+"'")
	}
}
