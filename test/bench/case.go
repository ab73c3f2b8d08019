package bench

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Settings are the sizes of the runs.
type Settings struct {
	// Messages is the backlog that is drained, and how many are published without a database.
	Messages int
	// Bytes is the size of a body.
	Bytes int
	// Keys is how many ordering keys keyed traffic has.
	Keys int
	// Queues is how many queues take the messages.
	Queues int
	// Steady is how long a steady load lasts, and Held for how long a transaction is held open.
	Steady, Held time.Duration
	// Window is the relay's --max-in-flight.
	Window int
}

// limitWindow is how many messages the limits have in flight: no more than a classic queue of RabbitMQ is fastest with.
func (s Settings) limitWindow() int {
	const fastest = 400
	return min(s.Window, fastest)
}

// Case is one thing that is measured.
type Case struct {
	Name  string
	About string // for people, a line
	// Beside names the case that its rate and latency are compared with; empty: none.
	Beside string
	// IsLimit tells what the relay is measured against from the relay itself.
	IsLimit bool
	// Full is only in the full plan.
	Full bool
	// Once is for what takes long: it is measured in the first round alone.
	Once bool
	// Program is the cdc-relay that is measured; empty: the site's.
	Program string
	// Least is what the longest time that a run may take is raised to.
	Least time.Duration

	run func(context.Context, *run) error
}

// Run measures the case once. timeout bounds it.
func (c Case) Run(ctx context.Context, site *Site, settings Settings, round int, timeout time.Duration, progress Progress) (*Result, error) {
	timeout = max(timeout, c.Least)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished within %s", timeout))
	defer cancel()
	r := &run{site: site, settings: settings, program: cmp.Or(c.Program, site.Relay), result: &Result{Case: c.Name, Round: round}, progress: progress}
	if err := c.run(ctx, r); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return r.result, nil
}

// with runs with other settings.
func with(s Settings, do func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		r.settings = s
		return do(ctx, r)
	}
}

// Against returns the cases, and beside each that is of the relay the same with another build of it.
func Against(cases []Case, program string) []Case {
	var all []Case
	for _, one := range cases {
		all = append(all, one)
		if !one.IsLimit {
			one.Name, one.Program = one.Name+OtherSuffix, program
			all = append(all, one)
		}
	}
	return all
}

// OtherSuffix ends the names of the cases with another build of the relay.
const OtherSuffix = "@other"
