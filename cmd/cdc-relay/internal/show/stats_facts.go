package show

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Paint colours words of a text for a terminal.
type Paint func(colour text.Color, words string) string

// Plain is a Paint for text without colours.
func Plain(_ text.Color, words string) string { return words }

// Facts prints the lines of stats.
func (v Stats) Facts(g rows, cfg *relay.Config, paint Paint) {
	g.Row(v.Table, Time(v.At))
	g.Row("queue depth", Count(v.counts["queue_depth"]))
	for _, s := range v.InStates() {
		shown := Count(s.Count)
		if s.Rare() && s.Count.N > 0 {
			shown = paint(text.FgYellow, shown)
		}
		if s.Note != "" && s.Count.N > 0 {
			shown += ", " + s.Note
		}
		if s.Next != nil {
			shown += " (" + Time(*s.Next) + ")"
		}
		if s.Count.N > 0 || !s.Rare() {
			g.Row(StateText(s.State), shown)
		}
	}
	oldest := "unknown: the query took too long"
	if v.OldestPendingSeconds != nil {
		oldest = "none waits"
		if v.oldest > 0 {
			oldest = Duration(v.oldest)
		}
	}
	g.Row("oldest pending", oldest)
	g.Row("blocked keys", Count(v.counts["blocked_keys"]))
	dead := Count(v.counts["dead_letters"])
	if v.NewestDeadLetterAt != nil {
		dead = paint(text.FgRed, dead) + fmt.Sprintf(", newest %s ago, oldest %s ago",
			Duration(v.At.Sub(*v.NewestDeadLetterAt)), Duration(v.At.Sub(*v.OldestDeadLetterAt)))
	}
	g.Row("dead letters", dead)
	if behind := v.counts["keys_behind_dead_letter"]; behind.N > 0 && DeadLettersBlock(cfg) {
		g.Row("keys held by them", Count(behind))
	}
	v.ServerFacts(g, cfg, paint)
}

// ServerFacts prints the lines of stats about the slot and the relay.
func (v Stats) ServerFacts(g rows, cfg *relay.Config, paint Paint) {
	v.slotFacts(g, cfg, paint)
	for _, s := range v.IdleSlots {
		unused := paint(text.FgYellow, "of others, nobody uses it")
		g.Row("slot "+Printable(s.Name), unused+"; retains "+Bytes(s.RetainedBytes))
	}
	for _, r := range v.Relays {
		r.facts(g, paint)
	}
}

// InState is how many rows of the outbox are in a state.
type InState struct {
	operator.State
	Count operator.Count
	// Note says what the state means, how old its oldest row is, or when the next row leaves it, at the time Next.
	Note string
	Next *time.Time
}

// InStates are the states of the rows of the outbox. They add up to the queue depth.
func (v Stats) InStates() (all []InState) {
	next := map[operator.State]*time.Time{operator.Retrying: v.NextRetryAt, operator.Scheduled: v.NextScheduledAt}
	for _, state := range operator.States() {
		if !state.Waits() {
			continue
		}
		s := InState{State: state, Count: v.counts[string(state)], Note: state.Means(), Next: next[state]}
		switch {
		case s.Next != nil:
			s.Note = "next in " + Duration(s.Next.Sub(v.At))
		case state == operator.AtOnce && v.oldestAtOnce != nil:
			s.Note = "oldest " + Duration(max(v.At.Sub(*v.oldestAtOnce), 0))
		}
		all = append(all, s)
	}
	return all
}

func (v Stats) slotFacts(g rows, cfg *relay.Config, paint Paint) {
	if cfg.Mode == relay.ModePoll && !v.Slot.Exists {
		return
	}
	switch {
	case !v.Slot.Exists:
		g.Row("slot "+v.Slot.Name, paint(text.FgYellow, "is not there: no relay streams"))
		return
	case !v.Slot.Owned:
		g.Row("slot "+v.Slot.Name, paint(text.FgYellow, "nobody owns it: no relay streams"))
	default:
		owner := "owned by " + sessionText(v.Slot.Owner.PID, v.Slot.Owner, v.At)
		if v.Slot.Owner.Since == nil {
			owner += "; more with GRANT pg_read_all_stats"
		}
		g.Row("slot "+v.Slot.Name, owner)
	}
	if v.SlotLagBytes == nil {
		g.Row("slot lag", "unknown")
		return
	}
	lag := Bytes(*v.SlotLagBytes)
	switch {
	case v.SlotLagSeconds != nil && v.Slot.Owned:
		lag += ", " + Duration(time.Duration(*v.SlotLagSeconds*float64(time.Second)))
	case v.SlotLagSeconds != nil:
		lag += ", not owned for " + Duration(time.Duration(*v.SlotLagSeconds*float64(time.Second)))
	}
	if v.Slot.RetainedBytes != nil {
		lag += "; retains " + Bytes(*v.Slot.RetainedBytes)
	}
	if v.Slot.WALStatus != nil && *v.Slot.WALStatus != "reserved" {
		lag += ", " + paint(text.FgYellow, "wal_status "+*v.Slot.WALStatus)
	}
	g.Row("slot lag", lag)
}

func (r Relay) facts(g rows, paint Paint) {
	state := OrElse(Printable(r.Role), "running")
	if !r.Works {
		g.Row(r.Name(), paint(text.FgYellow, "last seen "+Duration(r.unseen)+" ago")+"; it was "+state)
		return
	}
	if !r.Ready {
		state += ", " + paint(text.FgRed, "not ready") + "; publisher " + Printable(r.Phase)
	}
	g.Row(r.Name(), state)
	if r.Breaker != "" && r.Breaker != "closed" {
		g.Row("breaker", paint(text.FgYellow, Printable(r.Breaker)))
	}
	if !r.Leads() {
		return
	}
	g.Row("in flight", Number(int64(r.InFlight)))
	measured := time.Duration(r.Seconds * float64(time.Second))
	g.Row("throughput", fmt.Sprintf("%s messages/s over %s; %s since its start",
		Number(int64(r.PublishedPerSecond+0.5)), Duration(measured), Number(r.Published)))
	if r.Latency != nil {
		g.Row("commit to confirm", fmt.Sprintf("p50 %s, p99 %s, of %s",
			latencyText(r.Latency.P50Seconds), latencyText(r.Latency.P99Seconds),
			Plural(r.Latency.Messages, "message")))
	}
}

func latencyText(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < 10*time.Second {
		return Milliseconds(d)
	}
	return Duration(d)
}
