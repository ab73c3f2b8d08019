// Package bench measures the relay and its limits on its own servers. Cases take turns in rounds, so that other load on
// the machine affects all of them alike. The command line is test/cmd/cdc-relay-bench.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Settings are the sizes of the runs.
type Settings struct {
	// Messages is the size of the backlog, and the number of messages at full speed.
	Messages int
	// Bytes is the size of a body.
	Bytes int
	// Keys is how many ordering keys are used in cases with keys.
	Keys int
	// QueueType is the type of the queue, such as "quorum"; "": the server's default.
	QueueType string
	// Steady is the duration of a steady load.
	Steady time.Duration
	// Window is the relay's --max-in-flight.
	Window int
}

// Case is one thing to measure: what publishes messages, and how they come into its table.
type Case struct {
	Name  string
	About string // one line for people
	// Beside is the case to compare the rate with; "": none.
	Beside string
	// IsLimit marks what the relay is compared with: the AMQP library alone, which reads no table.
	IsLimit bool
	// Program is the cdc-relay to measure; "": the site's.
	Program string

	spec    Spec
	window  int     // of a limit: messages in flight
	backlog int     // messages that wait when the publisher starts
	warmUp  int     // messages that are written first and do not count
	written int     // messages that are written afterwards
	rate    float64 // of many writers, in a second; 0: a single writer, as fast as the messages arrive
}

// Run measures the case once. timeout limits it.
func (c Case) Run(ctx context.Context, site *Site, round int, timeout time.Duration) (*Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished within %s", timeout))
	defer cancel()
	c.Program = cmp.Or(c.Program, site.Relay)
	r := &run{Case: c, site: site, result: &Result{Case: c.Name, Round: round}}
	if err := r.measure(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return r.result, nil
}

// OtherSuffix ends the names of the cases with another build of the relay.
const OtherSuffix = "@other"

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

const (
	// mostUnconfirmed is how many messages the limits have in flight. Above this, a classic queue of RabbitMQ becomes
	// slower.
	mostUnconfirmed = 400
	// warmUp is how long a steady load runs before it is measured.
	warmUp = 2 * time.Second
	// peakTransaction is how many rows a transaction of a writer at full speed has.
	peakTransaction = 100
)

// Cases returns all cases, each limit before the cases that are compared with it.
func Cases(s Settings) []Case {
	plain := Spec{Bytes: s.Bytes, QueueType: s.QueueType}
	keyed := plain
	keyed.Keys = s.Keys
	window := min(s.Window, mostUnconfirmed)
	cases := []Case{
		{
			Name: "publish", About: "limit: publish with confirms through the AMQP library",
			IsLimit: true, spec: plain, window: window, backlog: s.Messages,
		},
		{Name: "drain", Beside: "publish", About: "the relay drains a backlog", spec: plain, backlog: s.Messages},
		{
			Name: "publish-written", About: "limit: publish while the same number of rows is written",
			IsLimit: true, spec: plain, window: window, written: s.Messages,
		},
		{
			Name: "stream", Beside: "publish-written", About: "the relay streams rows that are written at full speed",
			spec: plain, written: s.Messages,
		},
		{
			Name: "drain-keyed", Beside: "drain", About: "the relay drains a backlog with ordering keys",
			spec: keyed, backlog: s.Messages,
		},
		{
			Name: "stream-keyed", Beside: "stream", About: "the relay streams ordering keys at full speed",
			spec: keyed, written: s.Messages,
		},
	}
	for _, rate := range []int{500, 2000} {
		cases = append(cases, Case{
			Name: fmt.Sprintf("relay-%d", rate), About: fmt.Sprintf("the relay streams %d/s", rate),
			spec: plain, rate: float64(rate), warmUp: int(warmUp.Seconds()) * rate,
			written: max(int(s.Steady.Seconds()*float64(rate)), 1),
		})
	}
	return cases
}
