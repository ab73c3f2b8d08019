package soak

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

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
