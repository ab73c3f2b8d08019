package relay

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/outagelog"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
	"github.com/cdc-relay/cdc-relay/store"
)

// Report is what a relay tells about itself in its row of the table of relays, as JSON. docs/commands.md documents the
// keys.
type Report struct {
	Ready bool `json:"ready"`
	// Role is that of Health.
	Role  string `json:"role"`
	Parts []Part `json:"parts"`
	// Phase is the publisher's, Detail its last error, and Since when the phase began.
	Phase  string    `json:"publisher"`
	Detail string    `json:"publisher_detail"`
	Since  time.Time `json:"publisher_since"`
	// Breaker is closed, open or half_open; empty: the publisher has none.
	Breaker string `json:"breaker"`
	// SilentSeconds is for how long the publisher has had messages and given no result.
	SilentSeconds float64 `json:"silent_seconds"`
	// Stopped: nothing is published, because rows of published messages cannot be deleted.
	Stopped bool  `json:"stopped"`
	Aside   Aside `json:"set_aside"`

	InFlight  int   `json:"in_flight"`
	Published int64 `json:"published_total"`
	// Rates are those of the last minute.
	metrics.Rates
}

// Report returns what the relay tells now. It may be called at any time, from any goroutine.
func (r *Relay) Report() Report {
	h := r.Health()
	return Report{
		Ready: h.Ready, Role: h.Role, Parts: h.Parts, Phase: h.Publisher.Phase.String(), Detail: h.Publisher.Detail,
		Since: h.Publisher.Since.UTC(), Breaker: h.Publisher.Breaker, SilentSeconds: h.Silent.Seconds(),
		Stopped: h.Stopped, Aside: h.Aside, InFlight: r.core.View().InFlight,
		Published: r.counts.Published(), Rates: *r.reporter.rates.Load(),
	}
}

// reporter keeps the row of a relay in the table of relays. One goroutine calls run. Nothing waits for it.
type reporter struct {
	relay   *Relay
	trouble *outagelog.Log
	row     store.Report
	began   time.Time
	// past has the progress of the last minute, oldest first; rates is the result, which others read.
	past   []metrics.Progress
	rates  atomic.Pointer[metrics.Rates]
	lastID int64
	// rejected is the error of the database that was logged last; "": it accepts the row.
	rejected string
}

const (
	// reportEvery is how often the row is written, reportTick how often the relay looks for a change.
	reportEvery, reportTick = 5 * time.Second, 500 * time.Millisecond
	// reportAgain is the wait after the database has rejected the row: each try is a line in its log.
	reportAgain = time.Minute
)

func (r *Relay) newReporter() *reporter {
	host, _ := os.Hostname()                       // "" if it is unknown
	settings, _ := json.Marshal(r.config.Settings) // texts
	p := &reporter{
		relay: r, trouble: newOutageLog(r.log, r.address), began: time.Now(), row: store.Report{
			ID: rand.Text(), Host: host, PID: os.Getpid(), Version: r.config.Version, Settings: settings,
		},
	}
	p.rates.Store(&metrics.Rates{})
	return p
}

// run writes the row at each change that others should learn at once, and at intervals, until ctx is done. Then it
// deletes the row.
func (p *reporter) run(ctx context.Context) error {
	told := ""
	for next := p.began; ; {
		r, late := p.relay.Report(), !time.Now().Before(next)
		now := fmt.Sprint(r.Role, r.Phase, r.Ready, r.Stopped, r.Aside.Rows)
		if late || now != told && p.rejected == "" {
			told, next = now, time.Now().Add(p.write(ctx))
		}
		if sleep(ctx, reportTick) != nil {
			break
		}
	}
	if p.rejected == "" && p.relay.databaseAnswers() {
		_ = p.relay.store.Unreport(context.WithoutCancel(ctx), p.row.ID) // else the row shows when it was seen last
	}
	return nil
}

// write returns after which time the row is written again.
func (p *reporter) write(ctx context.Context) time.Duration {
	now := p.relay.counts.Progress()
	now.LastID = p.lastID
	p.past = append(p.past, now)
	for len(p.past) > 2 && now.At.Sub(p.past[1].At) >= time.Minute {
		p.past = p.past[1:]
	}
	p.rates.Store(new(now.Since(p.past[0])))
	report := p.relay.Report()
	p.row.Role, p.row.Runs = report.Role, time.Since(p.began)
	p.row.State, _ = json.Marshal(report) // it has no value that JSON cannot express
	lastID, err := p.relay.store.Report(ctx, p.row)
	switch {
	case err == nil:
		p.lastID, p.rejected = lastID, ""
		if first := &p.past[0]; first.LastID == 0 {
			first.LastID = lastID
		}
		p.trouble.Over(event.ReportRecovered, "telling other programs again what this relay does")
	case pgcode.Of(err) == "" && !problem.Is(err) || ctx.Err() != nil: // the other actors notice an outage
	default:
		if text := err.Error(); text != p.rejected {
			p.rejected = text
			p.trouble.Report(event.ReportFailing,
				"cannot write the row of this relay: other programs do not see it; messages unaffected", err)
		}
		return reportAgain
	}
	return reportEvery
}
