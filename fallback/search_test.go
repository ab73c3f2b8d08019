package fallback

import (
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// TestSearchOfTakeovers takes all steps of two relays in all orders, the shortest first, for three rows: two with the
// same key, one without. In each state, the checks of the model hold, and everything can still leave. Which relay is A and
// which is B makes another state. CDC_RELAY_TEST_SEARCH is for how long it searches.
func TestSearchOfTakeovers(t *testing.T) {
	within := 20 * time.Second
	if testing.Short() {
		within = 3 * time.Second
	}
	if set := os.Getenv("CDC_RELAY_TEST_SEARCH"); set != "" {
		var err error
		if within, err = time.ParseDuration(set); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	// A path is a step after an earlier path.
	type path struct {
		before int
		step   step
		weight int
	}
	var paths []path
	known := map[uint64]bool{}
	waiting := map[int][]int{} // by their weight
	add := func(before int, step step, weight int) {
		paths = append(paths, path{before, step, weight})
		waiting[weight] = append(waiting[weight], len(paths)-1)
	}
	for i, steps := range beginnings {
		add(-1, step{at: i}, 0)
		s := newSearch()
		if err := s.attempt(func() { s.take(steps...) }); err != nil {
			t.Fatalf("%v\n%s", err, tellSearch(steps))
		}
		s.stop()
	}
	stepsTo := func(i int) (steps []step) {
		for ; paths[i].before >= 0; i = paths[i].before {
			steps = append(steps, paths[i].step)
		}
		slices.Reverse(steps)
		return append(slices.Clone(beginnings[paths[i].step.at]), steps...)
	}
	taken, weight, longest := 0, 0, 0
	for ; len(waiting[weight])+len(waiting[weight+1])+len(waiting[weight+2]) > 0; weight++ {
		for len(waiting[weight]) > 0 {
			if time.Since(began) > within {
				t.Logf("%d states by %d steps, all up to weight %d, %d steps at most, in %.0fs", len(known), taken, weight-1,
					longest, time.Since(began).Seconds())
				return
			}
			next := waiting[weight][0]
			waiting[weight] = waiting[weight][1:]
			before := stepsTo(next)
			longest = max(longest, len(before))
			s := newSearch()
			s.take(before...)
			steps := s.steps()
			s.stop()
			for _, step := range steps {
				s := newSearch()
				s.take(before...)
				err := s.attempt(func() { s.take(step) })
				taken++
				if state := s.digest(); err == nil && !known[state] {
					known[state] = true
					add(next, step, weight+step.what.weight())
					err = s.attempt(s.end)
				}
				s.stop()
				if err != nil {
					t.Fatalf("%v\nafter %.1fs, %d states, %d steps of weight %d:\n%s", err, time.Since(began).Seconds(), len(known),
						len(before)+1, weight+step.what.weight(), tellSearch(append(before, step)))
				}
			}
		}
	}
	t.Logf("%d states by %d steps: all that there are, in %.0fs", len(known), taken, time.Since(began).Seconds())
}

// beginnings are where the search begins.
var beginnings = [][]step{
	{},
	// Three rows are streamed, one of them behind another of its key.
	{{what: commits}, {what: commits}, {what: commits}, {what: streams}, {what: streams}, {what: streams}},
	// Rows are in the table of a new leader. The old one has streamed none of them, or one.
	{{what: commits}, {what: commits}, {what: commits}, {what: streamEnds}, {what: takesSlot, relay: 1}, {what: ticks}},
	{{what: commits}, {what: commits}, {what: streams}, {what: streamEnds}, {what: takesSlot, relay: 1}, {what: ticks}},
	// A claim has seen a position that the WAL of the new server has not reached yet.
	{
		{what: commits},
		{what: commits},
		{what: streamEnds},
		{what: takesSlot, relay: 1},
		{what: ticks},
		{begins, 1, int(Keys)},
		{what: confirmed, relay: 1},
		{what: confirmed, relay: 1},
		{what: endsClaim, relay: 1},
		{what: failsOver},
		{what: takesSlot, relay: 1},
	},
	// A claim has published a scheduled row.
	{{what: commitsScheduled}, {what: streams}, {what: ticks}, {what: ticks}, {begins, 0, int(Due)}},
}

// weight is how late a search takes a step: faults and races come later.
func (k stepKind) weight() int {
	switch {
	case k >= freezes && k != thaws && k < ticks, k == unconfirmed:
		return 3
	case k == commitsUnseen, k == commitsScheduled, k == beginsSlowly, k == sleeps:
		return 2
	}
	return 1
}

// search is a state: two relays in one world, and what may still happen to them.
type search struct {
	*world
	both  [2]*searched
	left  left
	story []string
}

// left is how many faults and waits may still happen.
type left struct{ faults, waits int }

// searched is a relay of a search. One sweep at a time runs beside other steps: it rests before and after it locks rows.
type searched struct {
	*model
	name   string
	frozen bool
	// buffered is how many transactions the server had sent when the stream ended.
	buffered int
	resume   func() (struct{}, bool)
	abandon  func()
	// began is the hash of the states in which the running sweep has read something.
	began uint64
}

// step is a step of a relay, or of the world. At is the message or claim that it concerns, or the kind of a sweep.
type step struct {
	what  stepKind
	relay int
	at    int
}

type stepKind uint8

const (
	commits stepKind = iota
	commitsUnseen
	commitsScheduled
	reveals
	streams
	takesSlot
	learns
	begins
	beginsSlowly
	continues
	arrives
	confirmed
	unconfirmed
	settles
	endsClaim
	freezes
	thaws
	dies
	streamEnds
	restarts
	crashes
	failsOver
	ticks
	sleeps
)

// tick is longer than all times up to RestFor. Sleep is longer than all others.
const (
	tick  = 1300 * time.Millisecond
	sleep = 11 * time.Second
)

type violation string

func (violation) Fatalf(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// newSearch returns the first state: relay A leads and has read the empty table, relay B stands by.
func newSearch() *search {
	a := emptyModel()
	s := &search{world: a.world, left: left{faults: 2, waits: 3}}
	s.t = violation("")
	a.boot()
	for _, kind := range []Sweep{Backlog, Backlog, Keys, Keys} { // it has read the table
		a.sweep(kind, func() {})
	}
	b := a.world.relay()
	b.launch()
	s.both = [2]*searched{{model: a, name: "A"}, {model: b, name: "B"}}
	s.lastOwner = a
	return s
}

func (s *search) take(steps ...step) {
	for _, step := range steps {
		s.do(step, s.both[step.relay])
		s.relays[0].check()
	}
}

// attempt returns the violation in a step.
func (s *search) attempt(do func()) (err error) {
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case violation:
			err = fmt.Errorf("%s", string(failed))
		default:
			panic(failed)
		}
	}()
	do()
	return nil
}

// end lets everything leave.
func (s *search) end() {
	for _, r := range s.both {
		r.frozen = false
		for r.resume != nil {
			r.goOn()
		}
	}
	s.quiesce()
	s.lostNothing()
	for _, r := range s.both {
		r.empty()
	}
}

// stop frees what belongs to running sweeps.
func (s *search) stop() {
	for _, r := range s.both {
		r.drop()
	}
}

func (s *search) digest() uint64 {
	a, b := s.both[0], s.both[1]
	switch slices.Compare(a.looks(), b.looks()) {
	case -1:
		return digestOf(s.now, a, b, &s.left)
	case 1:
		return digestOf(s.now, b, a, &s.left)
	}
	return min(digestOf(s.now, a, b, &s.left), digestOf(s.now, b, a, &s.left))
}

// looks are numbers that usually differ between two relays.
func (r *searched) looks() []int {
	return []int{int(r.pid), r.streamed, len(r.inFlight), len(r.pending), r.term}
}

// steps returns what can happen next.
func (s *search) steps() (steps []step) {
	add := func(relay int, whats ...stepKind) {
		for _, what := range whats {
			steps = append(steps, step{what: what, relay: relay})
		}
	}
	if len(s.rows) < len(searchedKeys) && (searchedKeys[len(s.rows)] == "" || !s.relays[0].busy(searchedKeys[len(s.rows)])) {
		// No scheduled row without a key: a restart frees it at once, and a message of its former claim may arrive after
		// that of another relay, without the mark.
		add(0, commits, commitsUnseen)
	}
	if slices.ContainsFunc(s.txs, func(tx *modelTx) bool { return !tx.visible }) {
		add(0, reveals)
	}
	patient := true
	for i, r := range s.both {
		for at, message := range r.inFlight {
			there := slices.Contains(r.arrived, message)
			if !there && (!r.frozen || s.now.Sub(message.TakenAt) < tick) {
				steps = append(steps, step{arrives, i, at})
			}
			if !r.frozen {
				steps = append(steps, step{confirmed, i, at})
			}
			if !r.frozen && s.left.faults > 0 {
				steps = append(steps, step{unconfirmed, i, at})
			}
		}
		if r.frozen {
			add(i, thaws)
			if s.left.faults > 0 {
				add(i, dies)
			}
		} else {
			r.steps(i, &steps, add)
			patient = patient && len(r.claims) == 0 && r.resume == nil
		}
		if s.left.faults > 0 && r.owns() {
			add(i, streamEnds)
		}
		if s.left.faults > 0 && !r.frozen {
			add(i, freezes, dies)
		}
	}
	if s.left.faults > 0 {
		add(0, restarts, crashes)
		if len(s.txs) > 0 {
			add(0, failsOver)
		}
	}
	if s.left.waits > 0 && !slices.ContainsFunc(s.both[:], func(r *searched) bool { return r.hurries() }) {
		add(0, ticks)
	}
	if s.left.waits > 0 && patient {
		add(0, sleeps)
	}
	return steps
}

// hurries reports whether a claim must end before more time passes; see mostOpen.
func (r *searched) hurries() bool {
	return !r.frozen && slices.ContainsFunc(r.claims, func(c *modelClaim) bool { return r.clock.Add(tick).Sub(c.at) > mostOpen })
}

// steps adds what a running relay can do.
func (r *searched) steps(i int, steps *[]step, add func(int, ...stepKind)) {
	leads := r.core.View().Leader
	switch {
	case leads && r.streamed < r.sent():
		add(i, streams)
	case !leads && r.slotPID == 0:
		add(i, takesSlot)
	}
	if leads && !r.owns() {
		add(i, learns)
	}
	if r.resume != nil {
		add(i, continues)
	} else {
		for _, kind := range []Sweep{Due, Backlog, Keys} {
			if r.sweeper.Role().wants(kind) && r.asked(kind) && (kind != Due || r.due()) {
				*steps = append(*steps, step{begins, i, int(kind)}, step{beginsSlowly, i, int(kind)})
			}
		}
	}
	if len(r.pending)+len(r.hidden) > 0 {
		add(i, settles)
	}
	for at := range r.claims {
		*steps = append(*steps, step{endsClaim, i, at})
	}
}

// sent is how many transactions the stream can bring.
func (r *searched) sent() int {
	if r.owns() {
		return len(r.txs)
	}
	return min(r.buffered, len(r.txs))
}

// due reports whether a sweep of due rows has a reason.
func (r *searched) due() bool {
	due := func(row *modelRow) bool { return !row.available.IsZero() && !row.available.After(r.now) }
	return r.core.View().Due || slices.ContainsFunc(r.visible(), due)
}

var searchedKeys = []string{"a", "a", ""}

func (s *search) do(step step, r *searched) {
	switch step.what {
	case commits, commitsUnseen, commitsScheduled:
		s.tell("row %d commits%s", len(s.rows)+1, map[stepKind]string{
			commitsUnseen: ", and is not visible yet", commitsScheduled: ", and is to be sent in 2s",
		}[step.what])
		r.insert(searchedKeys[len(s.rows):len(s.rows)+1], []bool{step.what == commitsScheduled})
		s.txs[len(s.txs)-1].visible = step.what != commitsUnseen
	case reveals:
		s.tell("all rows are visible")
		for _, tx := range s.txs {
			tx.visible = true
		}
	case streams:
		s.tell("relay %s streams row %d", r.name, r.txs[r.streamed].rows[0].id)
		r.streamNext()
	case takesSlot:
		s.tell("relay %s asks for the slot", r.name)
		r.takeSlot()
	case learns:
		s.tell("relay %s learns that it has lost the slot", r.name)
		r.core.LostSlot()
	case begins:
		s.tell("relay %s sweeps (%s)", r.name, Sweep(step.at))
		r.model.sweep(Sweep(step.at), func() {})
	case beginsSlowly:
		s.tell("relay %s begins a sweep (%s)", r.name, Sweep(step.at))
		r.begin(Sweep(step.at), s.seenBy(r))
	case continues:
		s.tell("relay %s continues its sweep", r.name)
		r.began ^= s.seenBy(r)
		r.goOn()
	case arrives:
		message := r.inFlight[step.at]
		s.tell("a message of relay %s arrives", r.name)
		r.arrive(message)
		r.arrived = append(r.arrived, message)
	case confirmed:
		s.tell("the confirm of row %d reaches relay %s", r.inFlight[step.at].ID, r.name)
		r.resolve(step.at, outbox.Confirmed, "", true)
	case unconfirmed:
		s.left.faults--
		s.tell("relay %s gets no confirm for row %d", r.name, r.inFlight[step.at].ID)
		r.resolve(step.at, outbox.Unknown, "", false)
	case settles:
		s.tell("relay %s writes its results", r.name)
		r.settle()
	case endsClaim:
		s.tell("a claim of relay %s ends", r.name)
		for range 3 {
			r.stepClaim(step.at)
		}
	case thaws:
		s.tell("relay %s wakes up", r.name)
		r.frozen = false
	case ticks, sleeps:
		s.left.waits--
		d := map[stepKind]time.Duration{ticks: tick, sleeps: sleep}[step.what]
		s.tell("%s pass", d)
		s.pass(d)
		if step.what == sleeps {
			s.endFrozen()
		}
	default:
		s.left.faults--
		s.fault(step.what, r)
	}
}

func (s *search) fault(what stepKind, r *searched) {
	switch what {
	case freezes:
		s.tell("relay %s freezes", r.name)
		r.frozen = true
	case dies:
		s.tell("relay %s dies and starts again", r.name)
		s.leave(r)
		r.endClaims()
		r.drop()
		r.launch()
		r.frozen, r.buffered = false, 0
		if s.lastOwner == r.model {
			s.lastOwner = nil
		}
	case streamEnds:
		s.tell("the server ends the stream of relay %s", r.name)
		s.leave(r)
	case restarts, crashes, failsOver:
		for _, r := range s.both {
			s.leave(r)
		}
		switch what {
		case restarts:
			s.tell("the server restarts")
			s.restart()
		case crashes:
			s.tell("the server crashes, and loses the traces of claims")
			s.replaceServer(0)
		default:
			s.tell("the server fails over, and loses row %d", s.txs[len(s.txs)-1].rows[0].id)
			s.replaceServer(1)
		}
	}
}

// leave ends the stream of a relay.
func (s *search) leave(r *searched) {
	if r.owns() {
		s.slotPID, s.freeSince, r.buffered = 0, s.now, len(s.txs)
	}
}

// endFrozen ends the sessions of frozen relays.
func (s *search) endFrozen() {
	for _, r := range s.both {
		if r.frozen {
			s.leave(r)
			r.endClaims()
		}
	}
}

func (s *search) seenBy(r *searched) uint64 {
	other := s.both[0]
	if other == r {
		other = s.both[1]
	}
	return digestOf(s.now, r, other, &s.left)
}

type abandoned struct{}

// begin begins a sweep.
func (r *searched) begin(kind Sweep, state uint64) {
	r.began = state
	r.resume, r.abandon = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if failed := recover(); failed != nil && failed != (abandoned{}) {
				panic(failed)
			}
		}()
		r.model.sweep(kind, func() {
			if r.locking && !yield(struct{}{}) {
				panic(abandoned{})
			}
		})
	})
	r.goOn()
}

// goOn continues a sweep up to its next statement that locks rows, or from there.
func (r *searched) goOn() {
	if _, more := r.resume(); !more {
		r.drop()
	}
}

// drop ends a sweep as the end of the process does.
func (r *searched) drop() {
	if r.abandon != nil {
		r.abandon()
	}
	r.resume, r.abandon, r.began = nil, nil, 0
	r.sweeping, r.locking, r.between = false, false, func() {}
}

func (s *search) tell(format string, args ...any) {
	if s.story != nil {
		s.story = append(s.story, fmt.Sprintf(format, args...))
	}
}

// tellSearch tells the steps in words.
func tellSearch(steps []step) string {
	s := newSearch()
	s.story = []string{"relay A leads, relay B stands by"}
	s.say = func(format string, args ...any) {
		last := &s.story[len(s.story)-1]
		*last += "; " + fmt.Sprintf(format, args...)
	}
	err := s.attempt(func() {
		s.take(steps...)
		s.tell("all goes well from here")
		s.say = func(string, ...any) {}
		s.end()
	})
	s.stop()
	if err != nil {
		s.tell("%v", err)
	}
	return "  " + strings.Join(s.story, "\n  ")
}
