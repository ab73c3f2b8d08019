package relay

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/publish"
)

// Health is the state of a relay. Live: it works, or waits for something that may return; a relay that is not live
// needs a restart. Ready: it delivers, or is the standby of a relay that delivers.
type Health struct {
	Live, Ready bool
	// Role is streaming, standby, sweeping (no stream, or none yet), polling, starting or stopping.
	Role  string
	Parts []Part
	// Publisher is the publisher's state. Silent is for how long it has had messages and given no result; 0: it has
	// none, or it answers.
	Publisher publish.State
	Silent    time.Duration
	// Stopped: nothing is published, because rows of published messages cannot be deleted. Aside are the rows.
	Stopped bool
	Aside   Aside
}

// Part is the health of one actor.
type Part struct {
	Name   string `json:"name"`
	Live   bool   `json:"live"`
	Ready  bool   `json:"ready"`
	Detail string `json:"detail"` // one line for people: what it waits for
	Fix    string `json:"fix"`    // what a person can do about it, in words or SQL; "": nothing known
}

const (
	// stuckAfter is how long an actor may be without progress, beyond announced waits, and still be live.
	stuckAfter = time.Minute
	// slowAfter is how long it may wait for the database and still be ready.
	slowAfter = 10 * time.Second
)

// Health returns the current state. It may be called at any time, from any goroutine.
func (r *Relay) Health() Health {
	h := Health{
		Live: true, Ready: true, Role: r.role(), Publisher: r.publisherState(), Silent: r.awaited.silent(),
		Stopped: r.core.View().Suspended || r.stalls(), Aside: *r.settler.aside.Load(),
	}
	add := func(name string, beat *heartbeat, ready bool, detail, fix string) {
		live := beat == nil || beat.age() < stuckAfter
		switch {
		case !live:
			detail = fmt.Sprintf("has not moved for %s", beat.age().Round(time.Second))
			ready = false
		case beat != nil && beat.age() > slowAfter:
			waits := fmt.Sprintf("has waited for the database for %s", beat.age().Round(time.Second))
			detail, ready = waits+detailOf(r.settler.commits.Current()), false
		}
		h.Live, h.Ready = h.Live && live, h.Ready && ready
		h.Parts = append(h.Parts, Part{Name: name, Live: live, Ready: ready, Detail: detail, Fix: fix})
	}
	switch phase := r.phase.Load(); phase {
	case phaseStarting:
		detail := "checking the database"
		if trouble := r.starting.Current(); trouble != "" {
			detail = trouble
		}
		add("start", nil, false, detail, r.starting.Hint())
		return h
	case phaseStopped:
		add("stop", nil, false, "stopped", "")
		return h
	}
	detail := h.Publisher.Phase.String() + detailOf(h.Publisher.Detail)
	if h.Publisher.Phase == publish.Ready && h.Silent > slowAfter {
		detail += fmt.Sprintf("; it has given no result for %s", h.Silent.Round(time.Second))
	}
	var stuck *heartbeat
	if p, ok := r.publisher.(publish.Watched); ok && p.Overdue() >= stuckAfter {
		stuck = newHeartbeat()
		stuck.beatFor(-p.Overdue())
	}
	add("publisher", stuck, h.Publisher.Phase == publish.Ready, detail, "")
	add(r.leads())
	if r.phase.Load() == phaseRunning { // at shutdown the sweeper ends first, while the others finish
		trouble := r.sweepTrouble()
		if !r.core.View().Leader && r.leader.waitsFor.Load() == nil {
			trouble = cmp.Or(trouble, "not leading")
		}
		add("sweep", r.sweeping, trouble == "", cmp.Or(trouble, "sweeping"), r.sweeper.Trouble.Hint())
	}
	trouble := cmp.Or(r.settler.commits.Current(), r.settler.trouble.Current())
	fix := cmp.Or(r.settler.commits.Hint(), r.settler.trouble.Hint(), r.settler.locked.Hint())
	settles := trouble == "" && !r.core.View().Suspended && !r.stalls()
	add("settle", r.settler.alive, settles, cmp.Or(trouble, r.settlerText()), fix)
	return h
}

// leads returns the part that leads, and streams unless the relay polls or drains.
func (r *Relay) leads() (name string, alive *heartbeat, ready bool, detail, fix string) {
	leader, streamer, leads := r.leader, r.streamer.Load(), r.core.View().Leader
	holder := leader.waitsFor.Load()
	name, alive, ready, detail = "lead", leader.alive, leads || holder != nil, "leading"
	fix = leader.trouble.Hint()
	if streamer != nil {
		name, detail = "stream", "streaming"
	}
	switch {
	case holder != nil:
		return name, alive, ready, "standby: the leader is " + holder.String(), ""
	case !leads:
		return name, alive, ready, "not leading" + detailOf(leader.trouble.Current()), fix
	case streamer == nil:
		return name, alive, ready, detail, ""
	case streamer.alive.age() > silence:
		ready, detail = false, "the server does not answer; publishing rows from the table"
	case !streamer.streams.Load():
		ready, detail = false, "not streaming"+detailOf(streamer.trouble.Current())
	case !streamer.progress.caughtUp.Load() || streamer.progress.lagging.Load():
		detail = "catching up; publishing older rows from the table"
	}
	return name, streamer.alive, ready, detail, streamer.trouble.Hint()
}

// stalls reports whether published rows that cannot be deleted yet fill the window, and none has left it lately.
func (r *Relay) stalls() bool {
	return r.settler.waits.Load() > 0 && r.core.View().Lacking > slowAfter
}

func (r *Relay) settlerText() string {
	aside := r.settler.aside.Load()
	if r.core.View().Suspended {
		return "publishing stopped: rows of published messages cannot be deleted" + aside.text()
	}
	if aside.Rows > 0 {
		return "settling" + aside.text()
	}
	if r.stalls() {
		why := cmp.Or(r.settler.locked.Current(), "queries do not see them yet")
		return fmt.Sprintf("publishing stopped: %d published rows fill the window and cannot be deleted yet: %s",
			r.settler.waits.Load(), why)
	}
	return "settling" + detailOf(r.settler.locked.Current())
}

func detailOf(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

func (r *Relay) role() string {
	switch r.phase.Load() {
	case phaseStarting:
		return "starting"
	case phaseStopping, phaseStopped:
		return "stopping"
	}
	switch streamer := r.streamer.Load(); {
	case r.leader.waitsFor.Load() != nil:
		return "standby"
	case streamer == nil:
		return "polling"
	case streamer.streams.Load():
		return "streaming"
	}
	return "sweeping"
}

func (r *Relay) databaseAnswers() bool {
	if phase := r.phase.Load(); phase == phaseStarting || phase == phaseStopped {
		return false
	}
	return r.sweepTrouble() == "" && r.settler.trouble.Current() == ""
}

// sweepTrouble is the error of the last sweep. A standby has none: it does not sweep until it leads.
func (r *Relay) sweepTrouble() string {
	if r.leader.waitsFor.Load() != nil {
		return ""
	}
	return r.sweeper.Trouble.Current()
}

// streamHeard is when the stream's last message arrived; zero: never.
func (r *Relay) streamHeard() time.Time {
	streamer := r.streamer.Load()
	if streamer == nil || streamer.progress.heard.Load() == 0 {
		return time.Time{}
	}
	return time.Unix(0, streamer.progress.heard.Load())
}
