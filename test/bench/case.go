package bench

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Settings are the sizes of the runs.
type Settings struct {
	// Messages is the size of the backlog, and the number of messages that are published without a database.
	Messages int
	// Bytes is the size of a body.
	Bytes int
	// Keys is how many ordering keys are used in cases with keys.
	Keys int
	// Steady is the duration of a steady load, Held how long a transaction stays open.
	Steady, Held time.Duration
	// Window is the relay's --max-in-flight.
	Window int
}

// limitWindow is how many messages the limits have in flight. Above this, a classic queue of RabbitMQ becomes slower.
func (s Settings) limitWindow() int {
	const fastest = 400
	return min(s.Window, fastest)
}

// Case is one thing to measure.
type Case struct {
	Name  string
	About string // one line for people
	// Beside is the case to compare rate and latency with; "": none.
	Beside string
	// IsLimit marks what the relay is compared with.
	IsLimit bool
	// Full: only in the full plan. Peer: only in the plan compare, which also has what the peers are compared with.
	Full, Peer bool
	// Once: measured only in the first round, because it takes long.
	Once bool
	// Program is the cdc-relay to measure; "": the site's.
	Program string
	// Least is the minimum limit for a run.
	Least time.Duration

	run func(context.Context, *run) error
}

// Run measures the case once. timeout limits it.
func (c Case) Run(
	ctx context.Context, site *Site, settings Settings, round int, timeout time.Duration,
) (*Result, error) {
	timeout = max(timeout, c.Least)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished within %s", timeout))
	defer cancel()
	r := &run{
		site:     site,
		settings: settings,
		program:  cmp.Or(c.Program, site.Relay),
		result:   &Result{Case: c.Name, Round: round},
	}
	if err := c.run(ctx, r); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return r.result, nil
}

// with runs do with other settings.
func with(s Settings, do func(context.Context, *run) error) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		r.settings = s
		return do(ctx, r)
	}
}

// Against returns the cases, and after each case of the relay the same case with another build of it.
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
