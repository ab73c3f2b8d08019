package amqp

import (
	"testing"
	"time"
)

func TestBreakerTransitions(t *testing.T) {
	const cooldown = 30 * time.Second
	names := map[breakerState]string{breakerClosed: "closed", breakerOpen: "open", breakerHalfOpen: "half-open"}
	type step struct {
		what string // outage, answered, connected, tick
		at   time.Duration
		want breakerState
	}
	for name, steps := range map[string][]step{
		"one outage does not open": {
			{"outage", 0, breakerClosed}, {"connected", 1, breakerClosed}, {"tick", cooldown, breakerClosed},
		},
		"an answer between two outages": {
			{"outage", 0, breakerClosed}, {"answered", 1, breakerClosed}, {"outage", 2, breakerClosed},
		},
		"two in a row open, a connection half-opens, an answer closes": {
			{"outage", 0, breakerClosed},
			{"outage", 1, breakerOpen},
			{"connected", 2, breakerHalfOpen},
			{"answered", 3, breakerClosed},
			{"outage", 4, breakerClosed},
		},
		"the cooldown half-opens": {
			{"outage", 0, breakerClosed},
			{"outage", 1, breakerOpen},
			{"tick", cooldown, breakerOpen},
			{"tick", cooldown + 1, breakerHalfOpen},
		},
		"one outage opens again, with a new cooldown": {
			{"outage", 0, breakerClosed},
			{"outage", 1, breakerOpen},
			{"tick", cooldown + 1, breakerHalfOpen},
			{"outage", cooldown + 2, breakerOpen},
			{"tick", cooldown + 3, breakerOpen},
			{"tick", 2*cooldown + 2, breakerHalfOpen},
		},
		"more outages while open begin the cooldown again": {
			{"outage", 0, breakerClosed},
			{"outage", 1, breakerOpen},
			{"outage", cooldown, breakerOpen},
			{"tick", cooldown + 1, breakerOpen},
			{"tick", 2 * cooldown, breakerHalfOpen},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := breaker{cooldown: cooldown}
			start := time.Unix(0, 0)
			for i, s := range steps {
				apply(&b, s.what, start.Add(s.at))
				if b.state != s.want {
					t.Fatalf("step %d, %s: %s, want %s", i, s.what, names[b.state], names[s.want])
				}
			}
		})
	}
}

func apply(b *breaker, what string, now time.Time) {
	switch what {
	case "outage":
		b.outage(now)
	case "answered":
		b.answered()
	case "connected":
		b.connected()
	case "tick":
		b.tick(now)
	}
}
