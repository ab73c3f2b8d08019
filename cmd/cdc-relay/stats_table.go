package main

import (
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/relay"
)

// showStats prints the table for people.
func (p *process) showStats(cfg *config, v statsView) error {
	g := p.newTable()
	p.statsFacts(g, cfg, v)
	if err := g.write(); err != nil {
		return err
	}
	return p.showFailing(v)
}

// statsFacts prints the lines of stats.
func (p *process) statsFacts(g rows, cfg *config, v statsView) {
	g.row(v.Table, timeText(v.At))
	g.row("queue depth", countOf(v.counts["queue_depth"]))
	g.row("waiting", countOf(v.counts["waiting"]))
	g.row("behind", behindText(v.counts["behind"]))
	g.row("due", countOf(v.counts["due"]))
	g.row("in retry", countOf(v.counts["retrying"])+next(", next", v.NextRetryAt, v.At))
	g.row("scheduled", countOf(v.counts["scheduled"])+next(", next", v.NextScheduledAt, v.At))
	g.row("unconfirmed", countOf(v.counts["unconfirmed"]))
	if locked := v.counts["locked"]; locked.N > 0 {
		g.row("locked", countOf(locked)+", usually by a relay that publishes them")
	}
	if newer := v.counts["newer_version"]; newer.N > 0 {
		g.row("newer version", p.paint(text.FgYellow, countOf(newer))+": schema_version is for a newer relay")
	}
	if expired := v.counts["expired"]; expired.N > 0 {
		g.row("expired", p.paint(text.FgYellow, countOf(expired))+", not published any more")
	}
	oldest := "unknown: the query took too long"
	if v.OldestPendingSeconds != nil {
		oldest = "none waits"
		if v.oldest > 0 {
			oldest = durationText(v.oldest)
		}
	}
	g.row("oldest pending", oldest)
	g.row("parked keys", countOf(v.counts["parked_keys"]))
	dead := countOf(v.counts["dead_letters"])
	if v.NewestDeadLetterAt != nil {
		dead = p.paint(text.FgRed, dead) + fmt.Sprintf(", newest %s ago, oldest %s ago",
			durationText(v.At.Sub(*v.NewestDeadLetterAt)), durationText(v.At.Sub(*v.OldestDeadLetterAt)))
	}
	g.row("dead letters", dead)
	if behind := v.counts["keys_behind_dead_letter"]; behind.N > 0 && cfg.relay.OnDeadLetter == relay.OnDeadLetterBlock {
		g.row("keys held by them", countOf(behind))
	}
	p.showSlot(g, cfg, v)
	if v.Relay != nil {
		p.showLive(g, v.Relay)
	}
}

// behindText says what rows are behind.
func behindText(c operator.Count) string {
	if c.N == 0 {
		return countOf(c)
	}
	return countOf(c) + ", wait for another message of their ordering key"
}

// next says when the first of several rows is due, or nothing.
func next(words string, at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("%s in %s (%s)", words, durationText(at.Sub(now)), timeText(*at))
}

func (p *process) showSlot(g rows, cfg *config, v statsView) {
	if cfg.relay.Mode == relay.ModePoll && !v.Slot.Exists {
		return
	}
	switch {
	case !v.Slot.Exists:
		g.row("slot "+v.Slot.Name, p.paint(text.FgYellow, "is not there: no relay streams"))
		return
	case !v.Slot.Owned:
		g.row("slot "+v.Slot.Name, p.paint(text.FgYellow, "nobody owns it: no relay streams"))
	default:
		o := v.Slot.Owner
		owner := fmt.Sprintf("owned by %s, backend %d", printable(orWord(valueOr(o.Application, ""), "an unnamed client")), o.PID)
		if o.Client != nil {
			owner += " from " + *o.Client
		}
		if o.Since != nil {
			owner += fmt.Sprintf(", for %s", durationText(v.At.Sub(*o.Since)))
		} else {
			owner += "; more with GRANT pg_read_all_stats"
		}
		g.row("slot "+v.Slot.Name, owner)
	}
	if v.SlotLagBytes == nil {
		g.row("slot lag", "unknown")
		return
	}
	lag := bytesText(*v.SlotLagBytes)
	switch {
	case v.SlotLagSeconds != nil && v.Slot.Owned:
		lag += ", " + durationText(time.Duration(*v.SlotLagSeconds*float64(time.Second)))
	case v.SlotLagSeconds != nil:
		lag += ", not owned for " + durationText(time.Duration(*v.SlotLagSeconds*float64(time.Second)))
	}
	if v.Slot.RetainedBytes != nil {
		lag += "; retains " + bytesText(*v.Slot.RetainedBytes)
	}
	if v.Slot.WALStatus != nil && *v.Slot.WALStatus != "reserved" {
		lag += ", " + p.paint(text.FgYellow, "wal_status "+*v.Slot.WALStatus)
	}
	g.row("slot lag", lag)
}

func (p *process) showLive(g rows, v *liveView) {
	if v.Error != nil {
		g.row("relay at "+v.Address, p.paint(text.FgYellow, "does not answer")+": "+shortened(*v.Error, 100))
		return
	}
	state := orWord(v.Role, "running")
	if !v.Ready {
		state += ", " + p.paint(text.FgRed, "not ready") + "; publisher " + v.Publisher
	}
	g.row("relay at "+v.Address, state)
	if v.Breaker != "" && v.Breaker != "closed" {
		g.row("breaker", p.paint(text.FgYellow, v.Breaker))
	}
	g.row("in flight", countText(v.InFlight))
	g.row("throughput", fmt.Sprintf("%s messages/s over %s; %s since its start", countText(int64(v.PublishedPerSecond+0.5)),
		durationText(time.Duration(v.MeasuredSeconds*float64(time.Second))), countText(v.Published)))
	if v.Latency != nil {
		g.row("commit to confirm", fmt.Sprintf("p50 %s, p99 %s, of %s", latencyText(v.Latency.P50Seconds), latencyText(v.Latency.P99Seconds),
			rowsText(v.Latency.Messages, "message")))
	}
}

func latencyText(s float64) string { return milliseconds(time.Duration(s * float64(time.Second))) }

func (p *process) showFailing(v statsView) error {
	if len(v.TopFailing) == 0 {
		return nil
	}
	note := ""
	if v.Precision["top_failing"] != operator.Exact {
		note = ", of the rows that come first"
	}
	fmt.Fprintf(p.stdout, "\nfailing most%s\n", note)
	g := p.newTable("ROUTING KEY", "ERROR", "IN RETRY", "DEAD", "EXAMPLE").fit()
	for _, f := range v.TopFailing {
		g.row(shortened(f.RoutingKey, 60), shortened(f.Error, 30), countText(f.Retrying), countText(f.Dead), shortened(f.Example, 80))
	}
	return g.write()
}
