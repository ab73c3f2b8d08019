package soak

import (
	"fmt"
	"testing"
	"time"
)

func TestEveryFaultIsPlanned(t *testing.T) {
	var all []Fault
	for _, side := range []string{"relay", "postgres", "rabbitmq"} {
		for i := range 5 {
			all = append(all, Fault{Name: fmt.Sprintf("%s-%d", side, i)})
		}
	}
	for _, overlap := range []float64{0, 0.5, 1} {
		p := newDeck(&Options{Seed: 3, Faults: all, Hold: time.Second, Overlap: overlap})
		seen := make(map[string]int)
		for planned := 0; planned < 10*len(all); {
			for _, f := range p.next() {
				planned++
				seen[f.fault.Name]++
			}
		}
		for _, f := range all {
			if seen[f.Name] != 10 {
				t.Errorf("overlap %g: %s is planned %d times of 10", overlap, f.Name, seen[f.Name])
			}
		}
	}
}
