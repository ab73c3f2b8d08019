package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
)

// planned is one fault of a plan.
type planned struct {
	fault fault.Fault
	seed  uint64 // seeds the fault's own random choices
	hold  time.Duration
}

// round is one fault, or two at the same time.
type round []planned

// planner draws rounds without end: all faults in a random order, then all again in another order, so that each fault
// comes up regularly. Its choices depend only on the seed and the flags, not on the faults' results or duration.
type planner struct {
	random  *rand.Rand
	all     []fault.Fault
	hold    time.Duration
	overlap float64
	deck    []fault.Fault // the rest of the current order
}

func newPlanner(o *options) *planner {
	return &planner{
		random: rand.New(rand.NewPCG(uint64(o.seed), 0)), // the writers use other second seeds
		all: slices.DeleteFunc(slices.Clone(o.faults), func(f fault.Fault) bool {
			return f.Several && o.relays == 1
		}),
		hold: o.hold, overlap: o.overlap,
	}
}

// next draws a round. There must be faults.
func (p *planner) next() round {
	if len(p.deck) == 0 {
		p.deck = slices.Clone(p.all)
		p.random.Shuffle(len(p.deck), func(i, j int) { p.deck[i], p.deck[j] = p.deck[j], p.deck[i] })
	}
	first := p.deck[0]
	p.deck = p.deck[1:]
	r := round{p.plan(first)}
	both := p.random.Float64() < p.overlap
	if second := p.counterpart(first); both && second >= 0 {
		r = append(r, p.plan(p.deck[second]))
		p.deck = slices.Delete(p.deck, second, second+1)
	}
	return r
}

func (p *planner) plan(f fault.Fault) planned {
	hold := time.Duration((0.5 + p.random.Float64()) * float64(p.hold))
	return planned{fault: f, seed: p.random.Uint64(), hold: hold.Round(10 * time.Millisecond)}
}

// counterpart returns the position in the deck of the next fault of the other server, or -1. Two faults of the same
// server would interfere, and so would a fault of the relays with any other.
func (p *planner) counterpart(first fault.Fault) int {
	other := map[string]string{"postgres": "rabbitmq", "rabbitmq": "postgres"}[side(first)]
	return slices.IndexFunc(p.deck, func(f fault.Fault) bool { return other != "" && side(f) == other })
}

// side is what a fault breaks: the first word of its name.
func side(f fault.Fault) string {
	word, _, _ := strings.Cut(f.Name, "-")
	return word
}
