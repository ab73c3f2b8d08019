package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
)

func someFaults() []fault.Fault {
	var all []fault.Fault
	for _, side := range []string{"relay", "postgres", "rabbitmq"} {
		for i := range 5 {
			all = append(all, fault.Fault{Name: fmt.Sprintf("%s-%d", side, i)})
		}
	}
	return all
}

func plan(seed int64, overlap float64, rounds int) string {
	p := newPlanner(&options{seed: seed, faults: someFaults(), hold: time.Second, overlap: overlap})
	var b strings.Builder
	for range rounds {
		for _, f := range p.next() {
			fmt.Fprintf(&b, "%s %d %s, ", f.fault.Name, f.seed, f.hold)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestTheSameSeedMakesTheSamePlan(t *testing.T) {
	first, second := plan(7, 0.5, 100), plan(7, 0.5, 100)
	if first != second {
		t.Error("one seed gave two plans")
	}
	if first == plan(8, 0.5, 100) {
		t.Error("two seeds gave one plan")
	}
}

func TestEveryFaultIsPlanned(t *testing.T) {
	for _, overlap := range []float64{0, 0.5, 1} {
		p := newPlanner(&options{seed: 3, faults: someFaults(), hold: time.Second, overlap: overlap})
		for range 10 {
			seen := make(map[string]int)
			for len(seen) < 15 {
				for _, f := range p.next() {
					seen[f.fault.Name]++
					if seen[f.fault.Name] > 1 {
						t.Fatalf("overlap %g: %s is planned twice before others are planned once", overlap, f.fault.Name)
					}
				}
			}
		}
	}
}

func TestOverlappingFaultsConcernDifferentServers(t *testing.T) {
	p := newPlanner(&options{seed: 3, faults: someFaults(), hold: time.Second, overlap: 1})
	pairs := 0
	for range 100 {
		r := p.next()
		if len(r) == 1 {
			continue
		}
		pairs++
		if a, b := side(r[0].fault), side(r[1].fault); a == b || a == "relay" || b == "relay" {
			t.Errorf("%s with %s", r[0].fault.Name, r[1].fault.Name)
		}
	}
	if pairs < 20 {
		t.Errorf("%d pairs in 100 rounds", pairs)
	}
	if strings.Contains(strings.ReplaceAll(plan(3, 0, 100), ", \n", ""), ", \n") {
		t.Error("pairs without overlap")
	}
}

func TestDurationsOfFaultsAreWithinBounds(t *testing.T) {
	p := newPlanner(&options{seed: 3, faults: someFaults(), hold: 4 * time.Second, longHolds: true})
	long := 0
	for range 100 {
		hold := p.next()[0].hold
		switch {
		case hold >= time.Minute && hold <= 90*time.Second:
			long++
		case hold < 2*time.Second || hold > 6*time.Second:
			t.Errorf("held for %s", hold)
		}
	}
	if long != 25 {
		t.Errorf("%d of 100 are long", long)
	}
}
