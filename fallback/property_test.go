package fallback

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// rapid's default is 100 cases of 30 steps, which finds too little here: a race of a sweep with a reconnect takes
// thousands of cases. Flags on the command line take precedence.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "4000", "rapid.steps": "100"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	m.Run()
}

// steps are what may happen, by name.
type steps map[string]func(*rapid.T)

// walk takes random steps. In the end, everything leaves, and an idle core remembers nothing.
func walk(t *testing.T, of func(*model) steps, then ...func(*rapid.T, *model)) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(of(m))
		m.quiesce()
		m.lostNothing()
		m.empty()
		for _, check := range then {
			check(t, m)
		}
	})
}

func (s steps) without(names ...string) steps {
	maps.DeleteFunc(s, func(name string, _ func(*rapid.T)) bool { return slices.Contains(names, name) })
	return s
}

// In any order of steps by stream, sweeps, broker, settler, outages and crashes: no message is lost, each key keeps its
// order with one message in flight, no row is in flight twice, and duplicates are marked.
func TestRandomStepsLoseNothingAndKeepTheOrderOfKeys(t *testing.T) { walk(t, (*model).steps) }

// Without a crash and without a lost confirm, no message is delivered twice.
func TestRandomStepsDeliverOnceIfAllConfirmsArrive(t *testing.T) {
	walk(t, func(m *model) steps { return m.steps().without("crash", "outage", "unknown") }, func(t *rapid.T, m *model) {
		for id, n := range m.delivered {
			if n > 1 {
				t.Fatalf("row %d was delivered %d times", id, n)
			}
		}
	})
}

// A message that nobody can have published before is not marked, whether it was streamed or swept.
func TestRandomStepsMarkOnlyPossibleDuplicates(t *testing.T) {
	walk(t, func(m *model) steps {
		m.marksExactly = true
		steps := m.steps().without("crash", "freeze", "outage", "unknown", "nack", "fail over", "lose", "late")
		steps["down"] = func(*rapid.T) {
			m.core.PublisherReady(false)
			for len(m.inFlight) > 0 {
				m.resolve(0, outbox.NotSent, "", false)
			}
		}
		return steps
	})
}

// Rows without a key are read beside the stream of the same rows.
func TestRandomStepsDeliverEachRowOfARange(t *testing.T) {
	walk(t, func(m *model) steps {
		m.scheduledOfTen, m.expiring = 0, false
		steps := m.stepsOf("").without(
			"crash", "freeze", "reconnect", "fail over", "outage", "lose", "refuse", "nack", "not sent", "due", "keys")
		steps["insert too"], steps["backlog too"] = steps["insert"], steps["backlog"]
		return steps
	})
}

// A key with many rows leaves through the table, run by run.
func TestRandomStepsKeepTheOrderOfALongKey(t *testing.T) {
	walk(t, func(m *model) steps { // each of these steps restarts from the table
		return m.stepsOf("a", "a", "a", "b").without("crash", "freeze", "reconnect", "fail over", "outage", "lose")
	})
}

// Requeued dead letters keep their order, and leave before later rows, even if the stream is behind.
func TestRandomStepsKeepTheOrderOfRequeuedMessages(t *testing.T) {
	walk(t, func(m *model) steps {
		steps := m.stepsOf("a").without(
			"crash", "freeze", "reconnect", "fail over", "outage", "refuse", "unknown", "not sent", "stream2", "lose")
		steps["die"] = func(t *rapid.T) {
			for len(m.inFlight) > 0 {
				m.resolve(0, outbox.Impossible, outbox.ReasonTooLarge, false)
			}
			m.hearSettled()
			m.commitSettled()
			if rapid.Bool().Draw(t, "heard") {
				m.hearSettled()
			}
		}
		steps["die again"], steps["due too"] = steps["die"], steps["due"]
		return steps
	})
}

// Keys beyond the limit go by the table, and are direct again later.
func TestRandomStepsKeepTheOrderOfForgottenKeys(t *testing.T) {
	walk(t, func(m *model) steps {
		if !m.polls {
			m.limits.Keys = 2
			m.boot()
		}
		return m.stepsOf("a", "b", "c", "d", "e", "f").without(
			"crash", "freeze", "reconnect", "fail over", "outage", "lose", "impossible", "requeue", "unknown", "nack")
	})
}

// Sweeps become idle while nothing happens, also if there is too little room for the next page.
func TestRandomStepsEndWithIdleSweeps(t *testing.T) {
	walk(t, func(m *model) steps {
		steps := m.steps()
		steps["rest"] = func(*rapid.T) { m.rest() }
		return steps
	})
}

// Two relays take the lock from one another, at any time. Each may freeze, or die and start again.
func TestRandomStepsOfTwoRelays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newModel(t)
		a.restUntil = a.now
		relays, all := []*model{a, a.world.relay()}, steps{}
		relays[1].polls = a.polls
		relays[1].launch()
		for i, r := range relays {
			for name, step := range r.steps().without("crash", "person", "undecodable") {
				all[fmt.Sprint(name, " of ", i)] = step
			}
			all[fmt.Sprint("dies ", i)] = func(*rapid.T) { r.die() }
			all[fmt.Sprint("asks again ", i)] = func(*rapid.T) { r.askForLock() }
		}
		all["arrives"] = func(t *rapid.T) {
			if n := len(a.onTheirWay); n > 0 {
				i := rapid.IntRange(0, n-1).Draw(t, "message")
				a.arrive(a.onTheirWay[i])
				a.onTheirWay = slices.Delete(a.onTheirWay, i, i+1)
			}
		}
		t.Repeat(all)
		a.quiesce()
		a.lostNothing()
		for _, r := range relays {
			r.empty()
		}
	})
}

func (m *model) steps() steps {
	return m.stepsOf("", "", "a", "b", "c", "d", "e")
}

func (m *model) stepsOf(keys ...string) steps {
	some := rapid.Bool()
	all := m.outsideSteps(keys...)
	inner := slices.Sorted(maps.Keys(all))
	sweep := func(kind Sweep) func(*rapid.T) {
		return func(t *rapid.T) {
			core := m.core
			m.failing = func() bool { return rapid.IntRange(1, 20).Draw(t, "fails") == 1 }
			defer func() { m.failing = never }()
			m.sweep(kind, func() {
				for range rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "meanwhile") {
					if step := all[rapid.SampledFrom(inner).Draw(t, "step")]; step != nil && m.core == core {
						step(t)
					}
				}
			})
		}
	}
	maps.Copy(all, steps{
		"due": sweep(Due), "lately": sweep(Lately), "backlog": sweep(Backlog), "newest": sweep(Newest), "keys": sweep(Keys), "keys too": sweep(Keys),
		"end well": func(*rapid.T) { m.endWell() },
		"crash":    func(t *rapid.T) { m.crash([]bool{some.Draw(t, "arrived"), some.Draw(t, "arrived too")}) },
	})
	return all
}

// outsideSteps are steps that may happen during a statement.
func (m *model) outsideSteps(keys ...string) steps {
	key := rapid.SampledFrom(keys)
	some := rapid.Bool()
	resolve := func(outcome outbox.Outcome, reason outbox.Reason) func(*rapid.T) {
		return func(t *rapid.T) {
			if len(m.inFlight) > 0 {
				m.resolve(rapid.IntRange(0, len(m.inFlight)-1).Draw(t, "flight"), outcome, reason, outcome == outbox.Unknown && some.Draw(t, "took"))
			}
		}
	}
	return steps{
		"insert": func(t *rapid.T) {
			var keys []string
			var scheduled []bool
			for range rapid.IntRange(1, 3).Draw(t, "rows") {
				if k := key.Draw(t, "key"); !m.busy(k) || k == "" {
					keys = append(keys, k)
					scheduled = append(scheduled, rapid.IntRange(1, 10).Draw(t, "scheduled") <= m.scheduledOfTen)
				}
			}
			if len(keys) > 0 {
				m.insert(keys, scheduled)
			}
		},
		"reveal": func(t *rapid.T) {
			for _, tx := range m.txs {
				if !tx.visible && some.Draw(t, "visible") {
					tx.visible = true
				}
			}
		},
		"stream":  func(*rapid.T) { m.streamNext() },
		"stream2": func(*rapid.T) { m.streamNext() },
		"undecodable": func(*rapid.T) {
			if !m.polls && m.streamed < len(m.txs) {
				m.core.Unread()
				m.streamed++
			}
		},
		"confirm":    resolve(outbox.Confirmed, ""),
		"confirm2":   resolve(outbox.Confirmed, ""),
		"refuse":     resolve(outbox.Rejected, outbox.ReasonUnroutable),
		"nack":       resolve(outbox.Rejected, outbox.ReasonNack),
		"impossible": resolve(outbox.Impossible, outbox.ReasonTooLarge),
		"unknown":    resolve(outbox.Unknown, ""),
		"not sent":   resolve(outbox.NotSent, ""),
		"no room": func(t *rapid.T) {
			if len(m.inFlight) > 0 {
				m.noRoom(rapid.IntRange(0, len(m.inFlight)-1).Draw(t, "flight"))
			}
		},
		"outage": func(t *rapid.T) {
			m.core.PublisherReady(false)
			for len(m.inFlight) > 0 {
				m.resolve(0, outbox.Unknown, "", some.Draw(t, "took"))
			}
		},
		"requeue": func(t *rapid.T) {
			if dead := slices.Sorted(maps.Keys(m.dead)); len(dead) > 0 {
				id := rapid.SampledFrom(dead).Draw(t, "dead letter")
				if some.Draw(t, "all of its key") {
					m.requeue(m.deadOfItsKey(id)...)
				} else {
					m.requeue(id)
				}
			}
		},
		"recovery": func(*rapid.T) { m.core.PublisherReady(true) },
		"settle":   func(*rapid.T) { m.settle() },
		"commit":   func(*rapid.T) { m.commitSettled() },
		"body":     func(*rapid.T) { m.readBody() },
		"person": func(t *rapid.T) {
			for _, row := range m.visible() {
				if rapid.IntRange(1, 4).Draw(t, "looks at it") == 1 {
					row.person = !row.person
				}
			}
		},
		"lose": func(*rapid.T) {
			if m.holder == m {
				m.holder = nil
			}
		},
		"reconnect": func(*rapid.T) {
			if m.core.View().Leader && !m.polls {
				m.core.StreamEnded()
				m.stream()
			}
		},
		"fail over":    func(t *rapid.T) { m.failOver(rapid.IntRange(0, 3).Draw(t, "lost")) },
		"freeze":       func(*rapid.T) { m.pass(2 * time.Second) },
		"ask for lock": func(*rapid.T) { m.askForLock() },
		"soon":         func(*rapid.T) { m.pass(core.LateAfter) },
		"late":         func(*rapid.T) { m.late = !m.late },
		"time":         func(*rapid.T) { m.pass(500 * time.Millisecond) },
		"slow":         func(*rapid.T) { m.pass(modelTimeout + time.Second) },
	}
}
