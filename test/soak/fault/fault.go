// Package fault makes what goes wrong in a soak run: it holds the servers, the proxies and the relays that a run works
// on, and breaks and fixes them.
package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Fault is one way in which something breaks.
type Fault struct {
	Name  string // such as "relay-kill-leader"; unique
	About string // one line for people
	Needs Needs
	// Repeats is how many messages the promises allow to be published again because of it: none where it is nil.
	Repeats func(w *World) int
	// Refuses: the broker refuses messages while it lasts, so that attempts are charged and dead letters are right.
	Refuses bool
	// LosesCommits: the database itself may lose transactions whose commit was acknowledged.
	LosesCommits bool
	// LosesUnanswered: it may lose those whose COMMIT was not answered, after their messages have left.
	LosesUnanswered bool
	// Unmarked: repeats because of it may come without x-possible-duplicate; see history.Fault.
	Unmarked bool
	// EmptiesQueues: queues are deleted with what is in them.
	EmptiesQueues bool
	// Run makes the fault, holds it for about as long as it is told, fixes it, and returns when the servers answer
	// again. It fixes also where ctx ends meanwhile. The detail says what random chose. The error says what could not
	// be done, which is a defect of the run and not of the relay.
	Run func(ctx context.Context, w *World, random *rand.Rand, hold time.Duration) (detail string, err error)
}

// All is every fault, also those that this machine cannot make: see World.Can.
func All() []Fault {
	return slices.Concat(relayFaults(), postgresFaults(), rabbitmqFaults())
}

// Needs are conditions that a fault makes of its world.
type Needs uint

// What a fault may need.
const (
	OwnPostgres   Needs = 1 << iota // a server that may be stopped, killed and configured
	OwnRabbitMQ                     // a broker that may be stopped, killed and configured
	Linux                           // signals to every process of a server, /proc, limits
	Postgres17                      // a server of version 17 or later
	Standby                         // a Postgres with a streaming standby: Config.Standby
	Cluster                         // a broker of three nodes: Config.Cluster
	SeveralRelays                   // more than one relay
	PlainPostgres                   // connections that are not encrypted, so that the proxy can tell them apart
	Superuser                       // the URL's role is a superuser of the Postgres server
)

// Has tells whether all of the other needs are among these.
func (n Needs) Has(other Needs) bool { return n&other == other }

// String names the needs for people.
func (n Needs) String() string {
	names := []string{
		"a Postgres server of its own", "a RabbitMQ broker of its own", "Linux", "Postgres 17 or later",
		"a Postgres standby", "a RabbitMQ cluster", "several relays", "connections to Postgres without TLS",
		"a superuser of Postgres",
	}
	var needed []string
	for bit, name := range names {
		if n.Has(1 << bit) {
			needed = append(needed, name)
		}
	}
	return strings.Join(needed, ", ")
}

// inFlight is what may be published again where n relays are killed or lose what they know.
func inFlight(n int) func(*World) int {
	return func(w *World) int { return n * w.MaxInFlight }
}

// ifTakenOver is what may be published again where the slot may go from a relay that lives to another one, which then
// finds in the table what is in flight: nothing where there is one relay.
func ifTakenOver(w *World) int {
	if len(w.Relays) == 1 {
		return 0
	}
	return w.MaxInFlight
}

// wait holds a fault; it ends early where ctx does.
func wait(ctx context.Context, hold time.Duration) {
	timer := time.NewTimer(hold)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// fixTimeout ends a repair that hangs, even if the run's own context has ended.
const fixTimeout = 10 * time.Minute

// hangTimeout ends a single wait that hangs while a fault is made or fixed.
const hangTimeout = 5 * time.Minute

// fixing is a context that outlives the run's, since a fault is to be fixed in any case. It is made when the fixing
// begins, not before.
func fixing(ctx context.Context) (context.Context, context.CancelFunc) {
	cause := fmt.Errorf("the fault is not fixed within %s", fixTimeout)
	return context.WithTimeoutCause(context.WithoutCancel(ctx), fixTimeout, cause)
}

// holdThen holds a fault and fixes it.
func holdThen(ctx context.Context, hold time.Duration, fix func(ctx context.Context) error) error {
	wait(ctx, hold)
	fixCtx, cancel := fixing(ctx)
	defer cancel()
	return fix(fixCtx)
}

// poll asks until the answer is yes, fails, or ctx ends.
func poll(ctx context.Context, ask func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := ask(); yes || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
