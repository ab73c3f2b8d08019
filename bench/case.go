package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/bench/load"
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
	// Steady is how long a steady load lasts.
	Steady time.Duration
	// Window is how many messages the limits have in flight: the relay's --max-in-flight.
	Window int
}

// Case is one thing that is measured.
type Case struct {
	Name  string
	About string // for people, a line
	// Beside names the case that its rate and latency are compared with; empty: none.
	Beside string
	// IsLimit tells what the relay is measured against from the relay itself.
	IsLimit bool

	run func(context.Context, *run) error
}

// Run measures the case once. timeout bounds it.
func (c Case) Run(ctx context.Context, site *Site, settings Settings, round int, timeout time.Duration, progress Progress) (*Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not done within %s", timeout))
	defer cancel()
	r := &run{site: site, settings: settings, result: &Result{Case: c.Name, Round: round}, progress: progress}
	if err := c.run(ctx, r); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return r.result, nil
}

// Cases are all that can be measured, the limits before what is compared with them.
func Cases(s Settings) []Case {
	plain := backlog{messages: s.Messages, spec: load.Spec{Bytes: s.Bytes}, queues: s.Queues}
	keyed := plain
	keyed.spec.Keys = s.Keys
	cases := []Case{
		{Name: "publish", About: "limit: publish with confirms through the AMQP library", IsLimit: true, run: limitPublish(plain)},
		{Name: "read", About: "limit: read the slot and discard", IsLimit: true, run: limitRead(plain)},
		{Name: "drain", About: "the relay drains a backlog", Beside: "publish", run: drainRelay(plain)},
		{Name: "drain-keyed", About: "the same, with ordering keys", Beside: "drain", run: drainRelay(keyed)},
		{Name: "drain-poller", About: "a SKIP LOCKED poller drains it", Beside: "publish", IsLimit: true, run: drainPoller(plain)},
		{
			Name: "publish-written", About: "limit: publish while as many rows are written", IsLimit: true,
			run: limitPublishBesideWrites(plain),
		},
		{Name: "stream", About: "the relay streams what is written as fast as it comes", Beside: "publish-written", run: streamPeak(plain)},
		{Name: "stream-keyed", About: "the same, with ordering keys", Beside: "stream", run: streamPeak(keyed)},
	}
	for _, rate := range []int{500, 2000} {
		p := pace{rate: float64(rate), duration: s.Steady, spec: plain.spec, queues: s.Queues}
		direct := fmt.Sprintf("direct-%d", rate)
		cases = append(cases,
			Case{
				Name: direct, About: fmt.Sprintf("limit: insert %d/s and publish from the same process", rate), IsLimit: true,
				run: steady(p, byWriter),
			},
			Case{Name: fmt.Sprintf("relay-%d", rate), About: fmt.Sprintf("the relay streams %d/s", rate), Beside: direct, run: steady(p, byRelay)},
			Case{
				Name: fmt.Sprintf("poller-%d", rate), About: fmt.Sprintf("a SKIP LOCKED poller at %d/s", rate), Beside: direct,
				IsLimit: true, run: steady(p, byPoller),
			},
		)
	}
	return append(cases, Case{Name: "idle", About: "the relay has nothing to do", run: idle})
}
