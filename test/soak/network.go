package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// wire is connections of a relay through a proxy: all, or those of one kind.
type wire func(*relay) services.Kind

func rabbitmqWire(r *relay) services.Kind     { return r.rabbitMQ.Kind }
func postgresWire(r *relay) services.Kind     { return r.postgres.Kind }
func replicationWire(r *relay) services.Kind  { return r.postgres.Only(services.Replication) }
func postgresPoolWire(r *relay) services.Kind { return r.postgres.Only(services.Ordinary) }

// some returns the connections of all relays or of one of them.
func (w wire) some(a *attempt) (all []services.Kind) {
	relays := a.relays
	a.detail = "all relays"
	if n := a.random.IntN(2 * len(a.relays)); n < len(a.relays) && len(a.relays) > 1 {
		relays, a.detail = a.relays[n:n+1], a.relays[n].name
	}
	for _, relay := range relays {
		all = append(all, w(relay))
	}
	return all
}

// network disturbs connections, and repairs them after the hold.
func network(of wire, disturb, repair func(services.Kind)) begin {
	return func(_ context.Context, a *attempt) (fix, error) {
		wires := of.some(a)
		for _, one := range wires {
			disturb(one)
		}
		return func(context.Context) error {
			for _, one := range wires {
				repair(one)
			}
			return nil
		}, nil
	}
}

func refuse(of wire) begin {
	return network(of, func(k services.Kind) { k.Refuse(); k.Cut() }, services.Kind.Accept)
}

// blackHole loses what is sent in the directions; without any, in both.
func blackHole(of wire, directions ...services.Direction) begin {
	return network(of, func(k services.Kind) { k.BlackHole(directions...) },
		func(k services.Kind) { k.Resume(directions...) })
}

// cut resets the connections so many times.
func cut(of wire, rounds int) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		wires := of.some(a)
		for range rounds {
			for _, one := range wires {
				one.Cut()
			}
			program.Pause(ctx, a.hold/time.Duration(rounds))
		}
		return nil, nil
	}
}

// late delays what is sent to or from Postgres by 0.3 to 5 s.
func late(directions ...services.Direction) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		by := 300*time.Millisecond + a.upTo(4700*time.Millisecond)
		defer func() { a.detail += fmt.Sprintf(", by %s", by.Round(time.Millisecond)) }()
		return network(postgresWire, func(k services.Kind) { k.Delay(by, directions...) },
			func(k services.Kind) { k.Delay(0, directions...) })(ctx, a)
	}
}

// terminated ends the walsender some time after a fault has begun.
func terminated(f begin) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		fix, err := f(ctx, a)
		if !program.Pause(ctx, a.upTo(a.hold)) || err != nil {
			return fix, err
		}
		return fix, a.exec(ctx,
			"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '"+slot+"'")
	}
}
