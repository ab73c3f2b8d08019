// Package bench measures the relay and its limits on its own servers. Cases take turns in rounds, so that other load on
// the machine affects all of them alike. The command line is test/cmd/cdc-relay-bench.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
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

// Case is one thing to measure: what publishes messages, and how they come into its table.
type Case struct {
	Name  string
	About string // one line for people
	// Beside is the case to compare rate and latency with; "": none.
	Beside string
	// IsLimit marks what the relay is compared with. It reads no table.
	IsLimit bool
	// Full: only in the full plan.
	Full bool
	// Once: measured only in the first round, because it takes long.
	Once bool
	// Program is the cdc-relay to measure; "": the site's.
	Program string
	// Least is the minimum limit for a run.
	Least time.Duration

	start   start
	spec    Spec
	queues  int     // 0: one
	window  int     // of a limit: messages in flight
	backlog int     // messages that wait when the publisher starts
	warmUp  int     // messages that are written first and do not count
	written int     // messages that are written afterwards
	rate    float64 // of many writers, in a second; 0: a single writer, as fast as the messages arrive
	step    int     // rows of a transaction of the single writer; 0: all
	byClock bool    // the server vacuums and makes checkpoints by itself, as in production
	held    bool    // a transaction stays open all the time
}

// Run measures the case once. timeout limits it.
func (c Case) Run(ctx context.Context, site *Site, round int, timeout time.Duration) (*Result, error) {
	timeout = max(timeout, c.Least)
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
	// windowMB is how many messages of 1 MB the relay has in flight: its window has 32 MiB.
	windowMB = 32
	// warmUp is how long a steady load runs before it is measured.
	warmUp = 2 * time.Second
	// liveRate is how many live messages are written in a second beside a backlog: too few to delay one another.
	liveRate = 50
	// peakTransaction is how many rows a transaction of a writer at full speed has.
	peakTransaction = 100
)

// Cases returns all cases, each limit before the cases that are compared with it.
func Cases(s Settings) []Case {
	t := table{settings: s}
	poll := byRelay("--mode", "poll")
	drain, stream := Case{start: byRelay(), backlog: s.Messages}, t.flatOut(byRelay())

	t.limit("publish", "publish with confirms through the AMQP library", Case{backlog: s.Messages})
	t.relay("drain publish", "drains a backlog", drain)
	t.limit("publish-written", "publish while the same number of rows is written", t.flatOut(nil))
	t.relay("stream publish-written", "streams rows that are written at full speed", stream)
	for _, rate := range []int{500, 2000} {
		direct := fmt.Sprintf("direct-%d", rate)
		t.limit(direct, fmt.Sprintf("insert %d/s and publish from the same process", rate), t.steady(byWriter, rate))
		t.relay(fmt.Sprintf("relay-%d %s", rate, direct), fmt.Sprintf("streams %d/s", rate), t.steady(byRelay(), rate))
	}
	t.spec.Keys = s.Keys
	t.relay("drain-keyed drain", "drains a backlog with many ordering keys", drain)
	t.relay("stream-keyed stream", "streams many ordering keys at full speed", stream)

	t.full = true
	t.relay("drain-poll-keyed drain-keyed", "drains many ordering keys with --mode poll",
		Case{start: poll, backlog: s.Messages})
	t.relay("relay-500-keyed relay-500", "streams 500/s with many ordering keys", t.steady(byRelay(), 500))
	t.spec.Keys = 1
	few := max(s.Messages/20, 1)
	t.limit("publish-one", "publish with one message in flight", Case{backlog: few, window: 1})
	t.relay("drain-one-key publish-one", "drains a backlog of one ordering key", Case{start: byRelay(), backlog: few})
	t.spec = Spec{HotEvery: 20}
	t.relay("stream-hot-key stream", "streams at full speed, every 20th message of one key", stream)
	t.spec = Spec{QueueType: "quorum"}
	t.limit("publish-quorum", "publish to a quorum queue", Case{backlog: s.Messages})
	t.relay("drain-quorum publish-quorum", "drains to a quorum queue", drain)
	t.spec = Spec{}
	t.limit("publish-4-queues", "publish to four queues in turn", Case{backlog: s.Messages, queues: 4})
	t.relay("drain-4-queues publish-4-queues", "drains to four queues",
		Case{start: byRelay(), backlog: s.Messages, queues: 4})
	t.relay("stream-2-shards stream", "shares the stream with another one", t.flatOut(byShards(2)))
	t.relay("stream-4-shards stream", "shares the stream with three others", t.flatOut(byShards(4)))
	t.relay("drain-poll drain", "drains a backlog with --mode poll", Case{start: poll, backlog: s.Messages})
	// On few cores, the writers are faster than any relay, so a backlog grows while they write.
	t.relay("flat-out publish", "streams while many writers insert as fast as they can",
		Case{start: byRelay(), written: s.Messages, rate: math.Inf(1)})
	t.sizes()
	t.backlogs()
	t.beside(poll)
	t.long()
	return t.cases
}

// table collects the cases.
type table struct {
	settings Settings
	spec     Spec // of the next cases; Bytes are those of the settings unless it has its own
	full     bool // the next cases are only in the full plan
	cases    []Case
}

// add adds a case: its name, and after a space that of the case to compare it with.
func (t *table) add(names, about string, c Case) {
	c.Name, c.Beside, _ = strings.Cut(names, " ")
	c.About, c.Full, c.spec = about, t.full, t.spec
	c.spec.Bytes = cmp.Or(c.spec.Bytes, t.settings.Bytes)
	t.cases = append(t.cases, c)
}

// limit adds a limit, for other cases to be compared with.
func (t *table) limit(name, about string, c Case) {
	if c.start == nil {
		c.start = byLimit
	}
	c.IsLimit = true
	c.window = min(cmp.Or(c.window, t.settings.Window), mostUnconfirmed)
	t.add(name, "limit: "+about, c)
}

func (t *table) relay(names, about string, c Case) { t.add(names, "the relay "+about, c) }

// flatOut writes all messages while they are published, with a single writer.
func (t *table) flatOut(by start) Case {
	return Case{start: by, written: t.settings.Messages, step: peakTransaction}
}

func (t *table) steady(by start, rate int) Case {
	return Case{
		start: by, rate: float64(rate), warmUp: int(warmUp.Seconds()) * rate,
		written: max(int(t.settings.Steady.Seconds()*float64(rate)), 1),
	}
}

// sizes has large messages.
func (t *table) sizes() {
	s := t.settings
	const kB, MB = 1000, 1_000_000
	for _, size := range []struct {
		name                    string
		bytes, messages, window int
	}{
		{"1kB", kB, s.Messages, s.Window},
		{"100kB", 100 * kB, max(s.Messages/20, 1), min(s.Window, 10*windowMB)},
		{"1MB", MB, max(s.Messages/200, 1), min(s.Window, windowMB)},
	} {
		about, limit := "messages of "+size.name, "publish-"+size.name
		t.spec = Spec{Bytes: size.bytes}
		t.limit(limit, "publish "+about, Case{backlog: size.messages, window: size.window})
		t.relay("drain-"+size.name+" "+limit, "drains "+about, Case{start: byRelay(), backlog: size.messages})
		t.relay("stream-"+size.name, "streams "+about+" at full speed",
			Case{start: byRelay(), written: size.messages, step: peakTransaction})
	}
	t.spec = Spec{}
	t.relay("transaction", "streams a transaction of five times as many rows",
		Case{start: byRelay(), written: 5 * s.Messages})
}

// backlogs show how the cost grows with the backlog.
func (t *table) backlogs() {
	for _, size := range []struct {
		name     string
		messages int
	}{{"10k", 10_000}, {"100k", 100_000}, {"1M", 1_000_000}, {"10M", 10_000_000}} {
		one := Case{start: byRelay(), backlog: size.messages}
		if size.messages >= 1_000_000 {
			one.Once, one.Least = true, time.Hour
		}
		t.relay("backlog-"+size.name+" publish", "drains "+size.name+" rows", one)
	}
}

// beside shows what live messages wait while a backlog leaves. Latencies are theirs only.
func (t *table) beside(poll start) {
	for _, kind := range []struct {
		name, about string
		keys        int
	}{
		{"", "", 0}, {"-keyed", ", with many ordering keys", t.settings.Keys}, {"-hot", ", with ten ordering keys", 10},
	} {
		t.spec = Spec{Keys: kind.keys}
		about := "publishes live messages beside a backlog" + kind.about
		one := Case{backlog: t.settings.Messages, written: max(t.settings.Messages/500, 10), rate: liveRate}
		one.start = byRelay()
		t.relay("beside"+kind.name, about, one)
		one.start = poll
		t.relay("beside"+kind.name+"-poll", about+", with --mode poll", one)
	}
	t.spec = Spec{}
}

// long shows the effect of dead rows. Only the last fifth counts.
func (t *table) long() {
	const rate = 1000
	held := t.settings.Held
	fifth := int(held.Seconds() * rate / 5)
	one := Case{
		start: byRelay(), rate: rate, warmUp: 4 * fifth, written: fifth, byClock: true,
		Once: true, Least: 2*held + 10*time.Minute,
	}
	t.relay("long", "streams 1000/s for a long time", one)
	one.held = true
	t.relay("long-held long", "does the same while a transaction stays open", one)
}
