package history

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func check(t *rapid.T, lines []line) *Verdict {
	t.Helper()
	v, err := Check(bytes.NewReader(written(t, lines)))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// If every promise is kept, nothing is found, and the counters are right.
func TestAGoodHistoryPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Bool().Draw(t, "harsh"))
		t.Repeat(w.steps())
		w.finish()
		v := check(t, w.lines)
		if v.Result != Pass {
			t.Fatalf("%s", rendered(v))
		}
		w.want.DuplicatedOvertaken = v.Counters.DuplicatedOvertaken // the stories test it
		if v.Counters != w.want {
			t.Fatalf("counted\n%+v, want\n%+v", v.Counters, w.want)
		}
	})
}

// If the file of a good run is cut off anywhere, nothing is found.
func TestATruncatedGoodHistoryHasNoViolation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Bool().Draw(t, "harsh"))
		t.Repeat(w.steps())
		w.finish()
		text := written(t, w.lines)
		first := bytes.IndexByte(text, '\n')
		v, err := Check(bytes.NewReader(text[:rapid.IntRange(first, len(text)-3).Draw(t, "length")]))
		if err != nil {
			t.Fatal(err)
		}
		if v.Result != Incomplete {
			t.Fatalf("%s", rendered(v))
		}
	})
}

// The checker finds each promise that is broken in an otherwise good history.
func TestEveryBrokenPromiseIsFound(t *testing.T) {
	for _, spoiled := range spoilers() {
		t.Run(string(spoiled.code)+"/"+spoiled.how, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(t, false)
				t.Repeat(w.steps())
				w.finish()
				spoiled.spoil(w, t)
				v := check(t, w.lines)
				if !slices.ContainsFunc(v.Violations, func(x Violation) bool { return x.Code == spoiled.code }) {
					t.Fatalf("%s was not found:\n%s", spoiled.code, rendered(v))
				}
			})
		})
	}
}

type spoiler struct {
	code  Code
	how   string
	spoil func(*world, *rapid.T)
}

func spoilers() []spoiler {
	return slices.Concat(spoilDelivery(), spoilRows(), spoilHistory())
}

// one draws a message of a kind; the prelude has one.
func (w *world) one(t *rapid.T, what func(*sent) bool) *sent {
	return rapid.SampledFrom(w.having(what)).Draw(t, "victim")
}

func hasArrived(m *sent) bool { return m.arrivals > 0 }

// mustNotArrive reports whether the message was never committed.
func mustNotArrive(m *sent) bool { return !m.tx.kept || m.Discarded }

func isDelivery(id outbox.UUID) func(*line) bool {
	return func(l *line) bool { return l.Delivered != nil && l.Delivered.Message == id }
}

func isEnd(l *line) bool { return l.End != nil }

// somewhere draws a position after another.
func (w *world) somewhere(t *rapid.T, after int) int {
	return rapid.IntRange(after, w.find(isEnd)-1).Draw(t, "place")
}

func (w *world) ending(m *sent) int {
	return w.find(func(l *line) bool { return l.Ending != nil && l.Ending.ID == m.tx.ID })
}

func spoilDelivery() []spoiler {
	return []spoiler{
		{Lost, "never arrives", func(w *world, t *rapid.T) {
			w.remove(isDelivery(w.one(t, hasArrived).ID))
		}},
		{Lost, "dead letter is gone", func(w *world, t *rapid.T) {
			m := w.one(t, func(m *sent) bool { return m.deadLetter })
			w.remove(func(l *line) bool { return l.Remaining != nil && l.Remaining.Message == m.ID })
		}},
		{Unexpected, "was not committed", func(w *world, t *rapid.T) {
			m := w.one(t, mustNotArrive)
			w.insert(w.somewhere(t, w.ending(m)), line{Delivered: &Delivery{Message: m.ID, Marked: true}})
		}},
		{Unexpected, "nobody knows it", func(w *world, t *rapid.T) {
			w.insert(w.somewhere(t, 0), line{Delivered: &Delivery{Message: outbox.UUID{0: 7}}})
		}},
		{Unexpected, "arrives before COMMIT", func(w *world, t *rapid.T) {
			m := w.one(t, hasArrived)
			w.insert(w.ending(m)-1, line{Delivered: &Delivery{Message: m.ID}})
		}},
		{UnmarkedDuplicate, "two copies without the mark", func(w *world, t *rapid.T) {
			m := w.one(t, func(m *sent) bool { return m.unmarked })
			unmarked := w.find(func(l *line) bool { return isDelivery(m.ID)(l) && !l.Delivered.Marked && !l.Delivered.Redelivered })
			if unmarked == -1 {
				t.Skip("its copy without the mark came from the broker again")
			}
			w.insert(w.somewhere(t, unmarked), line{Delivered: &Delivery{Message: m.ID}})
		}},
		{TooManyDuplicates, "before any fault", func(w *world, t *rapid.T) {
			m := w.one(t, func(m *sent) bool { return m.Key == "prelude" && hasArrived(m) })
			w.insert(w.firstArrival(m.ID), line{Delivered: &Delivery{Message: m.ID, Marked: true}})
		}},
		{TooManyDuplicates, "one more than all faults allow", func(w *world, t *rapid.T) {
			m := w.one(t, hasArrived)
			allowed := 0
			for i := range w.lines {
				if f := w.lines[i].Began; f != nil {
					allowed += f.Duplicates
				}
			}
			for range allowed + 1 {
				w.insert(w.somewhere(t, w.firstArrival(m.ID)), line{Delivered: &Delivery{Message: m.ID, Marked: true}})
			}
		}},
		{OutOfOrder, "comes after a later one", func(w *world, t *rapid.T) {
			first := w.one(t, func(m *sent) bool {
				return m.Key != "" && hasArrived(m) && m.tx.outcome == Committed && w.follower(m) != nil
			})
			w.remove(isDelivery(first.ID))
			w.insert(w.firstArrival(w.follower(first).ID), line{Delivered: &Delivery{Message: first.ID}})
		}},
		{Early, "before it is due", func(w *world, t *rapid.T) {
			m := w.one(t, func(m *sent) bool { return m.Kind == Scheduled && hasArrived(m) })
			told := w.lines[w.ending(m)].Ending.Messages
			i := slices.IndexFunc(told, func(x Message) bool { return x.ID == m.ID })
			told[i].NotBefore = *w.lines[w.firstArrival(m.ID)].At + DefaultEarlyTolerance + 1
		}},
		{Damaged, "not as written", func(w *world, t *rapid.T) {
			w.lines[w.firstArrival(w.one(t, hasArrived).ID)].Delivered.Damaged = "body"
		}},
		{SlowRecovery, "the first arrival takes long", func(w *world, t *rapid.T) {
			w.lines[0].Run.RecoverWithin = 5 * time.Second
			w.lines = w.lines[:w.find(isEnd)]
			w.emit(line{Began: &Fault{ID: 1000, Name: "last"}})
			w.emit(line{Healed: &[]int{1000}[0]})
			tx := w.begin(0, []Message{w.message(Plain)})
			w.emit(line{Ended: &ended{ID: tx.ID, Outcome: Committed}})
			w.now += 5*time.Second + 1
			w.emit(line{Delivered: &Delivery{Message: tx.Messages[0].ID}})
			w.emit(line{Kept: &tx.ID})
			w.emit(line{End: &end{}})
		}},
	}
}

// follower returns a later message of the same key that arrived.
func (w *world) follower(m *sent) *sent {
	for _, x := range w.sent {
		if x.Key == m.Key && x.Seq > m.Seq && hasArrived(x) {
			return x
		}
	}
	return nil
}

func spoilRows() []spoiler {
	row := func(w *world, r Row) { w.insert(w.find(isEnd)-1, line{Remaining: &r}) }
	return []spoiler{
		{Unexpected, "has a row and was not committed", func(w *world, t *rapid.T) {
			row(w, Row{Message: w.one(t, mustNotArrive).ID, DeadLetter: rapid.Bool().Draw(t, "dead")})
		}},
		{NeedlessDeadLetter, "nothing refused it", func(w *world, t *rapid.T) {
			row(w, Row{Message: w.one(t, hasArrived).ID, DeadLetter: true})
		}},
		{NeedlessAttempt, "nothing refused it", func(w *world, t *rapid.T) {
			row(w, Row{Message: w.one(t, hasArrived).ID, Attempts: 1})
		}},
		{Stuck, "delivered, and its row stays", func(w *world, t *rapid.T) {
			row(w, Row{Message: w.one(t, hasArrived).ID})
		}},
		{Stuck, "not delivered", func(w *world, t *rapid.T) {
			m := w.one(t, func(m *sent) bool { return hasArrived(m) && (m.Key == "" || m.Key == "prelude") })
			w.remove(isDelivery(m.ID))
			row(w, Row{Message: m.ID})
		}},
		{TwoRows, "a row is there twice", func(w *world, t *rapid.T) {
			row(w, Row{Message: w.one(t, func(m *sent) bool { return m.deadLetter }).ID, DeadLetter: rapid.Bool().Draw(t, "dead")})
		}},
		{LostCommit, "the business row is gone", func(w *world, t *rapid.T) {
			m := w.one(t, func(m *sent) bool { return m.tx.outcome == Committed })
			w.remove(func(l *line) bool { return l.Kept != nil && *l.Kept == m.tx.ID })
		}},
	}
}

func spoilHistory() []spoiler {
	twice := func(w *world, t *rapid.T, what func(*line) bool) {
		var places []int
		for i := range w.lines {
			if what(&w.lines[i]) {
				places = append(places, i)
			}
		}
		if len(places) == 0 {
			t.Skip("there is no such line")
		}
		i := rapid.SampledFrom(places).Draw(t, "line")
		w.insert(i, w.lines[i])
	}
	sorts := map[string]func(*line) bool{
		"about to end twice": func(l *line) bool { return l.Ending != nil },
		"ended twice":        func(l *line) bool { return l.Ended != nil },
		"began twice":        func(l *line) bool { return l.Began != nil },
		"healed twice":       func(l *line) bool { return l.Healed != nil },
		"kept twice":         func(l *line) bool { return l.Kept != nil },
		"two ends":           isEnd,
	}
	all := []spoiler{
		{Contradiction, "time goes backwards", func(w *world, t *rapid.T) {
			i := rapid.IntRange(1, len(w.lines)-1).Draw(t, "line")
			before := *w.lines[i-1].At - 1
			w.lines[i].At = &before
		}},
		{Contradiction, "kept and rolled back", func(w *world, t *rapid.T) {
			m := w.one(t, func(m *sent) bool { return m.tx.outcome == RolledBack })
			w.insert(w.find(isEnd)-1, line{Kept: &m.tx.ID})
		}},
	}
	for how, what := range sorts {
		all = append(all, spoiler{Contradiction, how, func(w *world, t *rapid.T) { twice(w, t, what) }})
	}
	return all
}
