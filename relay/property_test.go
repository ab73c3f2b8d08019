package relay

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/fallback"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Whatever the order in which stream, sweeps, broker, settler, outages and crashes
// take their steps: nothing is lost, each key keeps its order with one message in
// flight, no row is in flight twice, and what is published again says so.
func TestNothingIsLostAndKeysKeepTheirOrderWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(m.steps())
		m.quiesce()
		for _, row := range m.rows {
			if m.delivered[row.id] == 0 && !m.dead[row.id] {
				t.Fatalf("row %d is gone and was not delivered", row.id)
			}
		}
		m.empty()
	})
}

// Without a crash and without a lost confirm nothing is ever delivered twice.
func TestNothingIsDeliveredTwiceByAProcessThatHearsItsConfirms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		steps := m.steps()
		steps["freeze"] = func(*rapid.T) { m.freeze(false, nil) }
		delete(steps, "crash")
		delete(steps, "outage")
		delete(steps, "unknown")
		t.Repeat(steps)
		m.quiesce()
		for id, n := range m.delivered {
			if n > 1 {
				t.Fatalf("row %d was delivered %d times", id, n)
			}
		}
		m.empty()
	})
}

// A key with many rows goes by the table, page by page.
func TestAKeyWithManyRowsKeepsItsOrderWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		steps := m.stepsOf("a", "a", "a", "b")
		for _, rare := range []string{"crash", "freeze", "reconnect", "fail over", "outage"} { // each begins anew with the table
			delete(steps, rare)
		}
		t.Repeat(steps)
		m.quiesce()
		m.empty()
	})
}

// Dead letters that are sent back keep their order, and leave before what comes after them, also while the stream is behind.
func TestWhatIsSentBackKeepsItsOrderWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		steps := m.stepsOf("a")
		for _, rare := range []string{"crash", "freeze", "reconnect", "fail over", "outage", "refuse", "unknown", "not sent", "slow", "stream2"} {
			delete(steps, rare)
		}
		steps["die"] = func(t *rapid.T) {
			for len(m.inFlight) > 0 {
				m.resolve(0, outbox.Impossible, false)
			}
			m.hearSettled()
			m.commitSettled()
			if rapid.Bool().Draw(t, "heard") {
				m.hearSettled()
			}
		}
		steps["die again"], steps["answer too"], steps["due too"] = steps["die"], steps["answer"], steps["due"]
		t.Repeat(steps)
		m.quiesce()
		m.empty()
	})
}

func (m *model) steps() map[string]func(*rapid.T) {
	return m.stepsOf("", "", "a", "b", "c", "d", "e")
}

func (m *model) stepsOf(keys ...string) map[string]func(*rapid.T) {
	key := rapid.SampledFrom(keys)
	some := rapid.Bool()
	flight := func(t *rapid.T) (int, bool) {
		if len(m.inFlight) == 0 {
			return 0, false
		}
		return rapid.IntRange(0, len(m.inFlight)-1).Draw(t, "flight"), true
	}
	sweep := func(kind fallback.Sweep) func(*rapid.T) {
		return func(t *rapid.T) {
			m.begin(kind)
			if some.Draw(t, "at once") {
				m.read()
			}
		}
	}
	return map[string]func(*rapid.T){
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
		"confirm": func(t *rapid.T) {
			if i, ok := flight(t); ok {
				m.resolve(i, outbox.Confirmed, true)
			}
		},
		"refuse": func(t *rapid.T) {
			if i, ok := flight(t); ok {
				m.resolve(i, outbox.Refused, false)
			}
		},
		"impossible": func(t *rapid.T) {
			if i, ok := flight(t); ok && some.Draw(t, "impossible") {
				m.resolve(i, outbox.Impossible, false)
			}
		},
		"unknown": func(t *rapid.T) {
			if i, ok := flight(t); ok {
				m.resolve(i, outbox.Unknown, some.Draw(t, "took"))
			}
		},
		"not sent": func(t *rapid.T) {
			if i, ok := flight(t); ok {
				m.resolve(i, outbox.NotSent, false)
			}
		},
		"outage": func(t *rapid.T) {
			m.core.publisherReady(false)
			for len(m.inFlight) > 0 {
				m.resolve(0, outbox.Unknown, some.Draw(t, "took"))
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
		"recovery":  func(*rapid.T) { m.core.publisherReady(true) },
		"settle":    func(*rapid.T) { m.settle() },
		"commit":    func(*rapid.T) { m.commitSettled() },
		"due":       sweep(fallback.Due),
		"follow":    sweep(fallback.Follow),
		"leftovers": sweep(fallback.Leftovers),
		"spilled":   sweep(fallback.Spilled),
		"key pass":  sweep(fallback.KeyPass),
		"key rows":  sweep(fallback.KeyRows),
		"read":      func(*rapid.T) { m.read() },
		"answer":    func(*rapid.T) { m.end() },
		"reconnect": func(*rapid.T) {
			m.core.lostSlot()
			m.takeSlot()
		},
		"fail over": func(*rapid.T) { m.failOver() },
		"freeze": func(t *rapid.T) {
			m.freeze(some.Draw(t, "replaced"), func() bool { return some.Draw(t, "by the other") })
		},
		"ask for slot": func(*rapid.T) { m.askForSlot() },
		"crash":        func(t *rapid.T) { m.crash([]bool{some.Draw(t, "arrived"), some.Draw(t, "arrived too")}) },
		"time":         func(*rapid.T) { m.pass(500 * time.Millisecond) },
		"slow":         func(*rapid.T) { m.pass(modelLease/2 + time.Second) },
		"":             func(*rapid.T) { m.leases() },
	}
}
