package bench

import (
	"fmt"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// Cases returns all cases, each limit before the cases that are compared with it.
func Cases(s Settings) []Case {
	return slices.Concat(
		peakCases(s), spreadCases(s), paceCases(s), keyCases(s), sizeCases(s), backlogCases(s), heldCases(s),
	)
}

func plain(s Settings) backlog {
	return backlog{messages: s.Messages, spec: load.Spec{Bytes: s.Bytes}, queues: s.Queues}
}

// peakCases measure the maximum throughput.
func peakCases(s Settings) []Case {
	b := plain(s)
	return []Case{
		{
			Name:    "publish",
			About:   "limit: publish with confirms through the AMQP library",
			IsLimit: true,
			run:     limitPublish(b),
		},
		{Name: "read", About: "limit: read the slot and discard", IsLimit: true, run: limitRead(b)},
		{Name: "drain", About: "the relay drains a backlog", Beside: "publish", run: drainRelay(b)},
		{
			Name:   "drain-poll",
			About:  "the relay drains a backlog with --mode poll",
			Beside: "drain",
			Full:   true,
			run:    drainRelay(b, "--mode", "poll"),
		},
		{
			Name:    "drain-poller",
			About:   "a SKIP LOCKED poller drains a backlog",
			Beside:  "publish",
			IsLimit: true,
			run:     drainPoller(b),
		},
		{
			Name: "publish-written", About: "limit: publish while the same number of rows is written", IsLimit: true,
			run: limitPublishBesideWrites(b),
		},
		{
			Name:   "stream",
			About:  "the relay streams rows that are written at full speed",
			Beside: "publish-written",
			run:    streamPeak(b),
		},
	}
}

// spreadCases measure the maximum throughput with a quorum queue, with several queues, and with several relays.
func spreadCases(s Settings) []Case {
	b, spread, quorum := plain(s), plain(s), plain(s)
	spread.queues = 4
	quorum.spec.QueueType = "quorum"
	return []Case{
		{
			Name:    "publish-quorum",
			About:   "limit: publish to a quorum queue",
			IsLimit: true,
			Full:    true,
			run:     limitPublish(quorum),
		},
		{
			Name:   "drain-quorum",
			About:  "the relay drains to a quorum queue",
			Beside: "publish-quorum",
			Full:   true,
			run:    drainRelay(quorum),
		},
		{
			Name:    "drain-poller-quorum",
			About:   "a SKIP LOCKED poller drains to a quorum queue",
			Beside:  "publish-quorum",
			IsLimit: true,
			Full:    true,
			run:     drainPoller(quorum),
		},
		{
			Name:    "publish-4-queues",
			About:   "limit: publish to four queues in turn",
			IsLimit: true,
			Full:    true,
			run:     limitPublish(spread),
		},
		{
			Name:   "drain-4-queues",
			About:  "the relay drains to four queues",
			Beside: "publish-4-queues",
			Full:   true,
			run:    drainRelay(spread),
		},
		{
			Name:   "stream-2-shards",
			About:  "two relays share the stream",
			Beside: "stream",
			Full:   true,
			run:    streamShards(b, 2),
		},
		{
			Name:   "stream-4-shards",
			About:  "four relays share the stream",
			Beside: "stream",
			Full:   true,
			run:    streamShards(b, 4),
		},
	}
}

// warmUp is how long a steady load runs before it is measured.
const warmUp = 2 * time.Second

// paceCases measure latency, and the cost of a message at low rates.
func paceCases(s Settings) []Case {
	var cases []Case
	for _, rate := range []int{500, 2000} {
		p := pace{
			rate:     float64(rate),
			warmUp:   warmUp,
			duration: s.Steady,
			spec:     load.Spec{Bytes: s.Bytes},
			queues:   s.Queues,
		}
		direct := fmt.Sprintf("direct-%d", rate)
		cases = append(cases,
			Case{
				Name:    direct,
				About:   fmt.Sprintf("limit: insert %d/s and publish from the same process", rate),
				IsLimit: true,
				run:     steady(p, byWriter),
			},
			Case{
				Name:   fmt.Sprintf("relay-%d", rate),
				About:  fmt.Sprintf("the relay streams %d/s", rate),
				Beside: direct,
				run:    steady(p, byRelay),
			},
			Case{
				Name:    fmt.Sprintf("poller-%d", rate),
				About:   fmt.Sprintf("a SKIP LOCKED poller at %d/s", rate),
				Beside:  direct,
				IsLimit: true,
				Full:    true,
				run:     steady(p, byPoller),
			},
		)
	}
	return append(cases, Case{Name: "idle", About: "the relay has nothing to do", run: idle})
}

// keyCases measure ordering keys.
func keyCases(s Settings) []Case {
	keyed, one, hot := plain(s), plain(s), plain(s)
	keyed.spec.Keys = s.Keys
	one.spec.Keys, one.messages = 1, max(s.Messages/20, 1)
	hot.spec.HotEvery = 20
	steadily := pace{rate: 500, warmUp: warmUp, duration: s.Steady, spec: keyed.spec, queues: s.Queues}
	alone := s
	alone.Window = 1
	return []Case{
		{
			Name:   "drain-keyed",
			About:  "the relay drains a backlog with many ordering keys",
			Beside: "drain",
			run:    drainRelay(keyed),
		},
		{
			Name:   "stream-keyed",
			About:  "the relay streams many ordering keys at full speed",
			Beside: "stream",
			run:    streamPeak(keyed),
		},
		{
			Name:   "drain-poll-keyed",
			About:  "the relay drains many ordering keys with --mode poll",
			Beside: "drain-keyed",
			Full:   true,
			run:    drainRelay(keyed, "--mode", "poll"),
		},
		{
			Name:   "relay-500-keyed",
			About:  "the relay streams 500/s with many ordering keys",
			Beside: "relay-500",
			Full:   true,
			run:    steady(steadily, byRelay),
		},
		{
			Name: "publish-one", About: "limit: publish with one message in flight", IsLimit: true, Full: true,
			run: with(alone, limitPublish(one)),
		},
		{
			Name:   "drain-one-key",
			About:  "the relay drains a backlog of one ordering key",
			Beside: "publish-one",
			Full:   true,
			run:    drainRelay(one),
		},
		{
			Name:   "stream-hot-key",
			About:  "the relay streams at full speed, one of 20 messages with the same key",
			Beside: "stream",
			Full:   true,
			run:    streamPeak(hot),
		},
	}
}

// windowMB is how many messages of 1 MB the relay has in flight: its window has 32 MiB.
const windowMB = 32

// sizeCases measure large messages.
func sizeCases(s Settings) []Case {
	const kB, MB = 1000, 1_000_000
	small, middle, large, one := plain(s), plain(s), plain(s), plain(s)
	small.spec.Bytes = kB
	middle.spec.Bytes, middle.messages = 100*kB, max(s.Messages/20, 1)
	large.spec.Bytes, large.messages = MB, max(s.Messages/200, 1)
	some, few := s, s
	some.Window = min(s.Window, 10*windowMB)
	few.Window = min(s.Window, windowMB)
	one.messages = 5 * s.Messages
	return []Case{
		{
			Name:    "publish-1kB",
			About:   "limit: publish messages of 1 kB",
			IsLimit: true,
			Full:    true,
			run:     limitPublish(small),
		},
		{
			Name:   "drain-1kB",
			About:  "the relay drains messages of 1 kB",
			Beside: "publish-1kB",
			Full:   true,
			run:    drainRelay(small),
		},
		{
			Name:  "stream-1kB",
			About: "the relay streams messages of 1 kB at full speed",
			Full:  true,
			run:   streamPeak(small),
		},
		{
			Name:    "publish-100kB",
			About:   "limit: publish messages of 100 kB",
			IsLimit: true,
			Full:    true,
			run:     with(some, limitPublish(middle)),
		},
		{
			Name:   "drain-100kB",
			About:  "the relay drains messages of 100 kB",
			Beside: "publish-100kB",
			Full:   true,
			run:    drainRelay(middle),
		},
		{
			Name:  "stream-100kB",
			About: "the relay streams messages of 100 kB at full speed",
			Full:  true,
			run:   streamPeak(middle),
		},
		{
			Name:    "publish-1MB",
			About:   "limit: publish messages of 1 MB",
			IsLimit: true,
			Full:    true,
			run:     with(few, limitPublish(large)),
		},
		{
			Name:   "drain-1MB",
			About:  "the relay drains messages of 1 MB",
			Beside: "publish-1MB",
			Full:   true,
			run:    drainRelay(large),
		},
		{
			Name:  "stream-1MB",
			About: "the relay streams messages of 1 MB at full speed",
			Full:  true,
			run:   streamPeak(large),
		},
		{
			Name:  "transaction",
			About: "the relay streams a transaction of five times as many rows",
			Full:  true,
			run:   streamTransaction(one),
		},
	}
}

// backlogCases measure how the cost grows with the backlog.
func backlogCases(s Settings) []Case {
	var cases []Case
	for _, size := range []struct {
		name     string
		messages int
	}{{"10k", 10_000}, {"100k", 100_000}, {"1M", 1_000_000}, {"10M", 10_000_000}} {
		b := plain(s)
		b.messages = size.messages
		one := Case{
			Name:   BacklogPrefix + size.name,
			About:  "the relay drains " + size.name + " rows",
			Beside: "publish",
			Full:   true,
			run:    drainRelay(b),
		}
		if size.messages >= 1_000_000 {
			one.Once, one.Least = true, time.Hour
		}
		cases = append(cases, one)
	}
	return cases
}

// BacklogPrefix begins the names of the cases that differ only in the size of the backlog.
const BacklogPrefix = "backlog-"

// heldCases measure the effect of dead rows. Only the last fifth counts.
func heldCases(s Settings) []Case {
	p := pace{
		rate: 1000, warmUp: s.Held * 4 / 5, duration: s.Held / 5, spec: load.Spec{Bytes: s.Bytes}, queues: s.Queues,
		slice: max(s.Held/60, time.Second),
	}
	held := p
	held.held = true
	least := 2*s.Held + 10*time.Minute
	return []Case{
		{
			Name:  "long",
			About: "the relay streams 1000/s for a long time",
			Full:  true,
			Once:  true,
			Least: least,
			run:   steady(p, byRelay),
		},
		{
			Name:   "long-held",
			About:  "the same, while a transaction stays open",
			Beside: "long",
			Full:   true,
			Once:   true,
			Least:  least,
			run:    steady(held, byRelay),
		},
	}
}
