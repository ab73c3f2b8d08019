package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/cdc-relay/cdc-relay/test/program"
	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// Fault is one kind of fault.
type Fault struct {
	Name string // unique, such as "relay-kill-leader"
	// duplicates says if the promises allow duplicates because of it.
	duplicates allowance
	// several: it needs more than one relay.
	several bool
	// refuses: the broker rejects messages meanwhile, so attempts and dead letters are expected.
	refuses bool
	// unmarked: duplicates because of it may lack x-possible-duplicate; see history.Fault.
	unmarked bool
	begin    begin
}

type allowance int

const (
	never allowance = iota
	always
	// ifTakenOver: a live relay remembers what it has in flight, so there are duplicates only if another relay takes
	// the lead, and finds these messages in the table.
	ifTakenOver
)

// begin causes a fault. fix undoes it, also after an error; nil: the fault is over, and has taken about its time. The
// error says what failed, which is a defect of the run and not of the relay.
type begin func(ctx context.Context, a *attempt) (fix, error)

type fix func(ctx context.Context) error

// attempt is one occurrence of a fault.
type attempt struct {
	*world
	random *rand.Rand
	hold   time.Duration
	detail string // what random chose
}

// leader waits until a relay streams, and notes its name.
func (a *attempt) leader(ctx context.Context) (*relay, error) {
	leader, err := a.awaitLeader(ctx)
	if err == nil {
		a.detail += leader.name + " "
	}
	return leader, err
}

// upTo draws a duration.
func (a *attempt) upTo(most time.Duration) time.Duration {
	return time.Duration(a.random.Int64N(int64(most) + 1))
}

// run causes the fault, holds it for about the given time, fixes it, and returns when the servers answer again. It also
// fixes it if ctx ends meanwhile, and tries again if that fails: another fault may still be active.
func (f *Fault) run(ctx context.Context, a *attempt) error {
	fix, err := f.begin(ctx, a)
	if fix == nil {
		return err
	}
	if err == nil {
		program.Pause(ctx, a.hold)
	}
	ctx, cancel := fixing(ctx)
	defer cancel()
	_, failed := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, fix(ctx)
	}, backoff.WithBackOff(backoff.NewConstantBackOff(500*time.Millisecond)), backoff.WithMaxElapsedTime(hangTimeout))
	return errors.Join(err, failed)
}

// tell returns what the history records of a fault that is about to begin.
func (f *Fault) tell(id, relays int, detail string) history.Fault {
	return history.Fault{
		ID: id, Name: f.Name, Detail: detail, Refuses: f.refuses, Unmarked: f.unmarked,
		Duplicates: f.duplicates == always || f.duplicates == ifTakenOver && relays > 1,
	}
}

// undone is a fault of two steps.
func undone(do, undo func(*world, context.Context) error) begin {
	return func(ctx context.Context, a *attempt) (fix, error) {
		return func(ctx context.Context) error { return undo(a.world, ctx) }, do(a.world, ctx)
	}
}

// fixTimeout ends a repair that hangs, even if the run's own context has ended. hangTimeout ends a single wait that
// hangs while a fault is made or fixed.
const fixTimeout, hangTimeout = 10 * time.Minute, 5 * time.Minute

// fixing returns a context that outlives the run's: a fault is fixed in any case. Call it when the fixing begins.
func fixing(ctx context.Context) (context.Context, context.CancelFunc) {
	cause := fmt.Errorf("the fault is not fixed within %s", fixTimeout)
	return context.WithTimeoutCause(context.WithoutCancel(ctx), fixTimeout, cause)
}

// planned is one fault of a plan.
type planned struct {
	fault Fault
	seed  uint64 // seeds the fault's own random choices
	hold  time.Duration
}

// round is one fault, or two at the same time.
type round []planned

// deck draws rounds without end: all faults in a random order, then all again in another order, so that each fault
// comes up regularly. Its choices depend only on the seed and the flags, not on the faults' results or duration.
type deck struct {
	random  *rand.Rand
	all     []Fault
	hold    time.Duration
	overlap float64
	rest    []Fault // the rest of the current order
}

func newDeck(o *Options) *deck {
	return &deck{
		random: rand.New(rand.NewPCG(uint64(o.Seed), 0)), // the writers use other second seeds
		all: slices.DeleteFunc(slices.Clone(o.Faults), func(f Fault) bool {
			return f.several && o.Relays == 1
		}),
		hold: o.Hold, overlap: o.Overlap,
	}
}

// next draws a round. There must be faults.
func (d *deck) next() round {
	if len(d.rest) == 0 {
		d.rest = slices.Clone(d.all)
		d.random.Shuffle(len(d.rest), func(i, j int) { d.rest[i], d.rest[j] = d.rest[j], d.rest[i] })
	}
	first := d.rest[0]
	d.rest = d.rest[1:]
	r := round{d.plan(first)}
	both := d.random.Float64() < d.overlap
	if second := d.counterpart(first); both && second >= 0 {
		r = append(r, d.plan(d.rest[second]))
		d.rest = slices.Delete(d.rest, second, second+1)
	}
	return r
}

func (d *deck) plan(f Fault) planned {
	hold := time.Duration((0.5 + d.random.Float64()) * float64(d.hold))
	return planned{fault: f, seed: d.random.Uint64(), hold: hold.Round(10 * time.Millisecond)}
}

// counterpart returns the position in the deck of the next fault of the other server, or -1. Two faults of the same
// server would interfere, and so would a fault of the relays with any other.
func (d *deck) counterpart(first Fault) int {
	other := map[string]string{"postgres": "rabbitmq", "rabbitmq": "postgres"}[side(first)]
	return slices.IndexFunc(d.rest, func(f Fault) bool { return other != "" && side(f) == other })
}

// side is what a fault breaks: the first word of its name.
func side(f Fault) string {
	word, _, _ := strings.Cut(f.Name, "-")
	return word
}
