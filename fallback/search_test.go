package fallback

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// TestSearchOfTakeovers takes all steps of two relays in all orders, the lightest first, from each beginning: faults and
// races weigh more. There are three rows, most of them with the same key. In each state, the checks of the model hold,
// and everything can still leave. States in which A and B have changed places are one. CDC_RELAY_TEST_SEARCH is for how
// long it searches, CDC_RELAY_TEST_SEARCH_FROM the only beginning.
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
	// A path is a step after an earlier path, or a beginning.
	type path struct {
		before int
		step   step
	}
	var paths []path
	known := map[uint64]bool{}
	waiting := map[int][]int{} // by their weight
	taken, weight, longest := 0, 0, 0
	to := func(i int) (begins int, steps []step) {
		for ; paths[i].before >= 0; i = paths[i].before {
			steps = append(steps, paths[i].step)
		}
		slices.Reverse(steps)
		return paths[i].step.at, steps
	}
	// take takes a step after a path, or begins.
	take := func(before int, step step) {
		paths = append(paths, path{before, step})
		begins, steps := to(len(paths) - 1)
		s := newSearch(begins)
		defer s.stop()
		s.take(steps...)
		taken++
		state := uint64(0)
		if s.failed == nil {
			state = s.digest()
		}
		if known[state] {
			paths = paths[:len(paths)-1]
			return
		}
		known[state] = true
		heavier := weight
		if before >= 0 {
			heavier += step.what.weight()
		}
		waiting[heavier] = append(waiting[heavier], len(paths)-1)
		if s.attempt(s.end); s.failed != nil {
			t.Fatalf("found: weight %d from %s, %d states, %.1fs: %v\n%s", heavier, beginnings[begins].name, len(known),
				time.Since(began).Seconds(), s.failed, tellSearch(begins, steps))
		}
	}
	from := os.Getenv("CDC_RELAY_TEST_SEARCH_FROM")
	for i, b := range beginnings {
		if from == "" || from == b.name {
			take(-1, step{at: i})
		}
	}
	for ; len(waiting[weight])+len(waiting[weight+1])+len(waiting[weight+2]) > 0; weight++ {
		for len(waiting[weight]) > 0 {
			if time.Since(began) > within {
				t.Logf("%d states by %d steps, all up to weight %d, %d steps at most, in %.0fs", len(known), taken, weight-1,
					longest, time.Since(began).Seconds())
				return
			}
			next := waiting[weight][0]
			waiting[weight] = waiting[weight][1:]
			begins, before := to(next)
			longest = max(longest, len(beginnings[begins].steps)+len(before))
			s := newSearch(begins)
			s.take(before...)
			steps := s.steps()
			s.stop()
			for _, step := range steps {
				take(next, step)
			}
		}
	}
	t.Logf("%d states by %d steps: all that there are, in %.0fs", len(known), taken, time.Since(began).Seconds())
}

// beginning is where a search begins: steps in a world of rows with these keys.
type beginning struct {
	name       string
	keys       []string
	coalescing bool
	steps      []step
}

var (
	usualKeys = []string{"a", "a", ""}
	oneKey    = []string{"a", "a", "a"}
	// takeover makes relay B the leader, and lets it read older rows.
	takeover  = slices.Concat(by(0, losesLock), by(1, takesLock, leads), by(0, ticks))
	readsRows = []step{{begins, 1, int(Backlog)}}
	readsKeys = []step{{begins, 1, int(Keys)}}
	// readsSlowly reads older rows, and has not published them yet.
	readsSlowly = []step{{beginsSlowly, 1, int(Backlog)}, {continues, 1, 0}}
)

var beginnings = []beginning{
	{name: "an empty table", keys: usualKeys},
	{name: "a row behind another of its key", keys: usualKeys, steps: by(0, commits, commits, commits, streams, streams, streams)},
	{name: "rows that nobody has streamed", keys: []string{"", "a", "a"}, steps: slices.Concat(by(0, commits, commits), takeover)},
	{name: "a row that the former leader has streamed", keys: usualKeys, steps: slices.Concat(by(0, commits, commits, streams), takeover)},
	{name: "a row read from a lost server", keys: usualKeys, steps: slices.Concat(by(0, commits, commits), takeover, readsKeys, by(1, confirmed, confirmed, failsOver, takesLock, leads))},
	{name: "messages of a lost server", keys: usualKeys, steps: by(0, commits, commits, commits, streams, streams, streams, failsOver, takesLock, leads)},
	{name: "a scheduled row in flight", keys: usualKeys, steps: slices.Concat(by(0, commitsScheduled, streams, ticks, ticks), []step{{begins, 0, int(Due)}, {begins, 0, int(Keys)}}, by(0, arrives))},
	{name: "a scheduled row on its way", keys: []string{"", "a", "a"}, steps: slices.Concat(by(0, commitsScheduled, streams, ticks, ticks), []step{{begins, 0, int(Due)}})},
	{name: "a row that is not visible yet", keys: usualKeys, steps: slices.Concat(by(0, commitsUnseen), takeover)},
	{name: "a row in the memory of the former leader", keys: usualKeys, steps: slices.Concat(by(0, commits, commits, streams, streams), takeover, readsKeys)},
	{name: "a row streamed after the lock was lost", keys: usualKeys, steps: slices.Concat(by(0, commits, losesLock), by(1, takesLock, leads), by(0, streams), []step{{ticks, 0, 1}})},
	{name: "a look-up of rows that the former leader has", keys: usualKeys, steps: slices.Concat(by(0, commits, commits, streams, streams), takeover, []step{{beginsSlowly, 1, int(Keys)}})},
	{name: "a second row of a key, not visible yet", keys: oneKey, steps: slices.Concat(by(0, commits), takeover, readsRows, readsKeys, readsKeys, by(0, commitsUnseen), by(1, streams, confirmed))},
	{name: "a frozen leader of two rows", keys: oneKey, steps: slices.Concat(by(0, commits), takeover, by(1, commits, streams), readsKeys, by(1, freezes, losesLock), by(0, takesLock, leads, ticks))},
	{name: "a row in memory that the next leader has deleted", keys: usualKeys, steps: slices.Concat(by(0, commits, streams), takeover, readsKeys, by(1, confirmed, settles, losesLock), by(0, learns, takesLock, leads, ticks))},
	{name: "a search beside the stream", keys: []string{"", "a", "a"}, steps: slices.Concat(takeover, by(0, commits), readsSlowly, by(1, streams))},
	{name: "a search of an earlier term", keys: []string{"", "a", "a"}, steps: slices.Concat(takeover, by(0, commits), readsSlowly, by(1, losesLock, learns, takesLock, leads))},
	{name: "a row that a newer one replaces", keys: []string{"", "a", "a"}, coalescing: true, steps: slices.Concat(by(0, commits, commits, commits), takeover)},
}

func by(relay int, whats ...stepKind) (steps []step) {
	for _, what := range whats {
		steps = append(steps, step{what: what, relay: relay})
	}
	return steps
}

// weight is how late a search takes a step: faults and races come later.
func (k stepKind) weight() int {
	switch k {
	case unconfirmed, rejected, freezes, dies, losesLock, restarts, failsOver:
		return faulty
	case commitsUnseen, commitsScheduled, beginsSlowly, endsWell:
		return 2
	}
	return 1
}

// faulty is the weight of a fault.
const faulty = 3

// search is a state: two relays in one world, and what may still happen to them.
type search struct {
	*world
	both   [2]*searched
	left   left
	failed error
}

// left is what may still happen: rows with these keys, faults and waits.
type left struct {
	keys          []string
	faults, waits int
}

// searched is a relay of a search. One sweep at a time runs beside other steps: it rests before and after it reads rows.
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

// step is a step of a relay, or of the world. At is the message that it concerns, the kind of a sweep, or 1 for a
// shorter wait.
type step struct {
	what  stepKind
	relay int
	at    int
}

type stepKind string

const (
	commits          stepKind = "commits a row"
	commitsUnseen    stepKind = "commits a row that is not visible yet"
	commitsScheduled stepKind = "commits a scheduled row"
	reveals          stepKind = "makes all rows visible"
	streams          stepKind = "streams a transaction"
	takesLock        stepKind = "takes the lock"
	leads            stepKind = "leads"
	learns           stepKind = "learns that it has lost the lock"
	begins           stepKind = "sweeps the table"
	beginsSlowly     stepKind = "searches the table, and does not read rows yet"
	continues        stepKind = "continues its sweep"
	arrives          stepKind = "has a message that arrives"
	confirmed        stepKind = "gets a confirm"
	unconfirmed      stepKind = "loses a confirm"
	rejected         stepKind = "gets a rejection"
	settles          stepKind = "settles rows"
	arrivesLate      stepKind = "has a message that arrives late"
	endsWell         stepKind = "ends well"
	freezes          stepKind = "freezes"
	thaws            stepKind = "wakes up"
	dies             stepKind = "dies and starts again"
	losesLock        stepKind = "loses its session"
	restarts         stepKind = "sees a restart of Postgres"
	failsOver        stepKind = "sees a failover of Postgres, which loses a row"
	ticks            stepKind = "waits"
)

// tick is longer than all times up to RestFor.
const tick = 1300 * time.Millisecond

type violation string

func (violation) Fatalf(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// newSearch returns a state in which the search begins. Before its steps, relay A leads and has read the empty table,
// and relay B stands by.
func newSearch(begins int) *search {
	a, from := emptyModel(), beginnings[begins]
	s := &search{world: a.world, left: left{from.keys, math.MaxInt, math.MaxInt}}
	s.t = violation("")
	s.coalescing = from.coalescing
	a.boot()
	for _, kind := range []Sweep{Backlog, Backlog, Keys, Keys} { // it has read the table
		a.sweep(kind, func() {})
	}
	b := a.world.relay()
	b.launch()
	s.both = [2]*searched{{model: a, name: "A"}, {model: b, name: "B"}}
	s.take(from.steps...)
	s.left.faults, s.left.waits = 2, 3
	return s
}

func (s *search) take(steps ...step) {
	for _, step := range steps {
		if s.failed == nil {
			s.attempt(func() { s.do(step, s.both[step.relay]) })
		}
	}
}

func (s *search) attempt(do func()) {
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case violation:
			what, _, _ := strings.Cut(string(failed), "{") // without the view of a core
			s.failed = errors.New(strings.TrimRight(what, ":; "))
		default:
			panic(failed)
		}
	}()
	if s.failed == nil {
		do()
	}
}

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
	return []int{map[bool]int{true: 1}[r.holder == r.model], r.streamed, len(r.inFlight), len(r.pending)}
}

func (s *search) steps() (steps []step) {
	add := func(relay int, whats ...stepKind) {
		for _, what := range whats {
			steps = append(steps, step{what: what, relay: relay})
		}
	}
	if n := len(s.rows); n < len(s.left.keys) && (s.left.keys[n] == "" || !s.relays[0].busy(s.left.keys[n])) {
		add(0, commits, commitsUnseen, commitsScheduled)
	}
	if slices.ContainsFunc(s.txs, func(tx *modelTx) bool { return !tx.visible }) {
		add(0, reveals)
	}
	for at := range s.onTheirWay {
		steps = append(steps, step{arrivesLate, 0, at})
	}
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
			if !there && !r.frozen && s.left.faults > 0 {
				steps = append(steps, step{rejected, i, at})
			}
		}
		if r.frozen {
			add(i, thaws)
			if s.left.faults > 0 {
				add(i, dies)
			}
		} else {
			r.steps(i, &steps, add)
		}
		if s.left.faults > 0 && r.holder == r.model {
			add(i, losesLock)
		}
		if s.left.faults > 0 && !r.frozen {
			add(i, freezes, dies)
		}
	}
	if s.left.faults > 0 {
		add(0, restarts)
		if len(s.txs) > 0 {
			add(0, failsOver)
		}
	}
	if s.left.waits > 0 {
		add(0, ticks)
	}
	return steps
}

func (r *searched) steps(i int, steps *[]step, add func(int, ...stepKind)) {
	knows := r.core.View().Leader
	switch {
	case knows && r.streamed < r.sent():
		add(i, streams)
	case !knows && r.holder == nil:
		add(i, takesLock)
	case !knows && r.holder == r.model:
		add(i, leads)
	}
	if knows && !r.leads() {
		add(i, learns)
	}
	if _, quiet := r.core.Quiet(); quiet && r.leads() {
		add(i, endsWell)
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
}

// sent is how many transactions the stream can bring.
func (r *searched) sent() int {
	if r.leads() {
		return len(r.txs)
	}
	return min(r.buffered, len(r.txs))
}

// due reports whether a sweep of due rows has a reason.
func (r *searched) due() bool {
	due := func(row *modelRow) bool { return !row.available.IsZero() && !row.available.After(r.now) }
	return r.core.View().Due || slices.ContainsFunc(r.visible(), due)
}

func (s *search) do(step step, r *searched) {
	if s.acting = r.model; step.what.weight() == faulty {
		s.left.faults--
	}
	switch step.what {
	case commits, commitsUnseen, commitsScheduled:
		n := len(s.rows)
		r.insert(s.left.keys[n:n+1], []bool{step.what == commitsScheduled})
		s.txs[len(s.txs)-1].visible = step.what != commitsUnseen
	case reveals:
		for _, tx := range s.txs {
			tx.visible = true
		}
	case streams:
		r.streamNext()
	case takesLock:
		r.takeLock()
	case leads:
		if s.word == nil {
			s.pass(max(r.taken.Add(core.LateAfter).Sub(s.now), 0))
		}
		r.lead(r.taken)
	case learns:
		r.core.EndTerm()
	case endsWell:
		r.drop()
		r.endWell()
	case arrivesLate:
		r.arrive(s.onTheirWay[step.at])
		s.onTheirWay = slices.Delete(s.onTheirWay, step.at, step.at+1)
	case begins:
		r.model.sweep(Sweep(step.at), func() {})
	case beginsSlowly:
		r.begin(Sweep(step.at), s.seenBy(r))
	case continues:
		r.began ^= s.seenBy(r)
		r.goOn()
	case arrives:
		message := r.inFlight[step.at]
		r.arrive(message)
		r.arrived = append(r.arrived, message)
	case confirmed:
		r.resolve(step.at, outbox.Confirmed, "", true)
	case unconfirmed:
		r.resolve(step.at, outbox.Unknown, "", true)
	case rejected:
		r.resolve(step.at, outbox.Rejected, outbox.ReasonUnroutable, true)
	case settles:
		r.settle()
	case freezes, thaws:
		r.frozen = step.what == freezes
	case dies:
		r.drop()
		r.die()
		r.frozen, r.buffered = false, 0
	case losesLock:
		s.leave(r)
	case restarts, failsOver:
		for _, r := range s.both {
			s.leave(r)
		}
		if step.what == restarts {
			s.restart()
		} else {
			s.failOver(1)
		}
	case ticks:
		s.left.waits--
		s.pass(tick - time.Duration(step.at)*core.LateAfter)
	}
}

// leave ends the sessions of a relay.
func (s *search) leave(r *searched) {
	if r.holder == r.model {
		s.holder, r.buffered = nil, len(s.txs)
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

func (r *searched) begin(kind Sweep, state uint64) {
	r.began = state
	r.resume, r.abandon = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if failed := recover(); failed != nil && failed != (abandoned{}) {
				panic(failed)
			}
		}()
		r.model.sweep(kind, func() {
			if r.reading && !yield(struct{}{}) {
				panic(abandoned{})
			}
		})
	})
	r.goOn()
}

// goOn continues a sweep up to its next statement that reads rows, or from there.
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
	r.sweeping, r.reading, r.between = false, false, func() {}
}

func tellSearch(begins int, steps []step) string {
	s := newSearch(begins)
	defer s.stop()
	var story strings.Builder
	name := func() string { return map[bool]string{true: "A", false: "B"}[s.acting == s.both[0].model] }
	s.say = func(format string, args ...any) {
		fmt.Fprintf(&story, "    relay %s %s\n", name(), fmt.Sprintf(format, args...))
	}
	for _, step := range steps {
		fmt.Fprintf(&story, "  %s %s (%d)\n", s.both[step.relay].name, step.what, step.at)
		s.take(step)
	}
	story.WriteString("  in the end\n")
	s.attempt(s.end)
	return fmt.Sprintf("%s  relay %s: %v", &story, name(), s.failed)
}
