package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// connectionFaults break the network between relays and Postgres, for one relay or all, chosen at random. Writers are
// not affected.
func connectionFaults() []Fault {
	const up, down = services.Upstream, services.Downstream
	const replication, ordinary = services.Replication, services.Ordinary
	return []Fault{
		connectionFault("postgres-cut", "all connections to Postgres are reset, several times", "", cut),
		connectionFault("postgres-cut-replication",
			"the replication connection is reset, several times", replication, cut),
		connectionFault("postgres-cut-pool", "the connections of the pool are reset, several times", ordinary, cut),
		connectionFault("postgres-refuse", "connections to Postgres are reset, and new ones are refused", "", refuse),
		connectionFault("postgres-refuse-replication",
			"replication connections are reset, and new ones are refused", replication, refuse),
		connectionFault("postgres-refuse-pool",
			"other connections are reset, and new ones are refused", ordinary, refuse),
		connectionFault("postgres-blackhole", "nothing passes between relays and Postgres", "", blackHole(up, down)),
		connectionFault("postgres-blackhole-upstream", "nothing from the relays reaches Postgres", "", blackHole(up)),
		connectionFault("postgres-blackhole-downstream",
			"nothing from Postgres reaches the relays", "", blackHole(down)),
		connectionFault("postgres-blackhole-replication", "nothing passes on replication connections",
			replication, blackHole(up, down)),
		connectionFault("postgres-blackhole-pool",
			"nothing passes except on replication connections", ordinary, blackHole(up, down)),
		lateFault("postgres-late-upstream", "data from the relays reaches Postgres late", false, up),
		lateFault("postgres-late-downstream", "data from Postgres reaches the relays late", false, down),
		lateFault("postgres-late-both-ways", "data in both directions is late", false, up, down),
		lateFault("postgres-late-upstream-and-terminated",
			"data from the relays is late, and Postgres ends the walsender", true, up),
		lateFault("postgres-late-downstream-and-terminated",
			"data from Postgres is late, and it ends the walsender", true, down),
		lateFault("postgres-late-both-ways-and-terminated",
			"data in both directions is late, and Postgres ends the walsender", true, up, down),
	}
}

// lateFault delays data by 0.3 to 5 s. With terminate, the server ends the walsender meanwhile.
func lateFault(name, about string, terminate bool, directions ...services.Direction) Fault {
	return Fault{
		Name: name, About: about, Duplicates: ifTakenOver,
		Run: func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
			whose, relays := w.someRelays(ctx, random)
			late := 300*time.Millisecond + time.Duration(random.Int64N(int64(4700*time.Millisecond)))
			delay := func(d time.Duration) {
				for _, relay := range relays {
					for _, proxy := range relay.Postgres {
						proxy.Delay(d, directions...)
					}
				}
			}
			delay(late)
			defer delay(0)
			detail := fmt.Sprintf("%s, by %s", whose, late.Round(time.Millisecond))
			if !terminate {
				wait(ctx, hold)
				return detail, nil
			}
			if wait(ctx, time.Duration(random.Int64N(int64(hold)))); ctx.Err() != nil {
				return detail, nil //nolint:nilerr // the run has ended
			}
			var ended int
			const sql = `SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = $1`
			err := w.Query(ctx, &ended, sql, w.Slot)
			wait(ctx, max(hold/2, late))
			return detail, err
		},
	}
}

// wire is all connections through a proxy, or those of one kind.
type wire interface {
	Cut()
	Refuse()
	Accept()
	BlackHole(directions ...services.Direction)
	Resume(directions ...services.Direction)
}

func connectionFault(name, about, kind string, disturb func(context.Context, []wire, time.Duration)) Fault {
	fault := Fault{
		Name: name, About: about, Duplicates: ifTakenOver,
		Run: func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (string, error) {
			whose, relays := w.someRelays(ctx, random)
			var wires []wire
			for _, relay := range relays {
				for _, proxy := range relay.Postgres {
					if kind == "" {
						wires = append(wires, proxy)
					} else {
						wires = append(wires, proxy.Only(kind))
					}
				}
			}
			disturb(ctx, wires, hold)
			return whose, nil
		},
	}
	if kind == services.Ordinary {
		fault.Duplicates = nil // the slot stays with its owner
	}
	return fault
}

// someRelays returns all relays, only the leader, or all except the leader.
func (w *World) someRelays(ctx context.Context, random *rand.Rand) (whose string, relays []*Relay) {
	leader, err := w.AwaitLeader(ctx)
	if err != nil || len(w.Relays) == 1 {
		return "all relays", w.Relays
	}
	switch random.IntN(3) {
	case 0:
		return "all relays", w.Relays
	case 1:
		return leader.Name + ", which streams", []*Relay{leader}
	}
	for _, relay := range w.Relays {
		if relay != leader {
			relays = append(relays, relay)
		}
	}
	return "all but " + leader.Name + ", which streams", relays
}

func cut(ctx context.Context, wires []wire, hold time.Duration) {
	const rounds = 5
	for range rounds {
		for _, wire := range wires {
			wire.Cut()
		}
		wait(ctx, hold/rounds)
	}
}

func refuse(ctx context.Context, wires []wire, hold time.Duration) {
	for _, wire := range wires {
		wire.Refuse()
		wire.Cut()
	}
	wait(ctx, hold)
	for _, wire := range wires {
		wire.Accept()
	}
}

func blackHole(directions ...services.Direction) func(context.Context, []wire, time.Duration) {
	return func(ctx context.Context, wires []wire, hold time.Duration) {
		for _, wire := range wires {
			wire.BlackHole(directions...)
		}
		wait(ctx, hold)
		for _, wire := range wires {
			wire.Resume(directions...)
		}
	}
}
