package bench

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/load"
)

// Cases returns all cases, each limit before the cases that are compared with it.
func Cases(s Settings) []Case {
	return slices.Concat(
		peakCases(s), full(spreadCases(s)), paceCases(s), keyCases(s), full(sizeCases(s)), full(backlogCases(s)),
		full(heldCases(s)),
		full(besideCases(s)), peerCases(s),
	)
}

func plain(s Settings) backlog {
	return backlog{messages: s.Messages, spec: load.Spec{Bytes: s.Bytes}}
}

// limitOf is a limit, for other cases to be compared with.
func limitOf(name, about string, run func(context.Context, *run) error) Case {
	return Case{Name: name, About: "limit: " + about, IsLimit: true, run: run}
}

// ofRelay is a case of the relay.
func ofRelay(name, beside, about string, run func(context.Context, *run) error) Case {
	return Case{Name: name, About: "the relay " + about, Beside: beside, run: run}
}

// full marks cases that only the full plan has.
func full(cases []Case) []Case {
	for i := range cases {
		cases[i].Full = true
	}
	return cases
}

// peakCases measure the maximum throughput.
func peakCases(s Settings) []Case {
	b := plain(s)
	cases := []Case{
		limitOf("publish", "publish with confirms through the AMQP library", limitPublish(b)),
		ofRelay("drain", "publish", "drains a backlog", drainRelay(b)),
		limitOf("publish-written", "publish while the same number of rows is written", limitPublishBesideWrites(b)),
		ofRelay("stream", "publish-written", "streams rows that are written at full speed", streamPeak(b)),
	}
	return append(cases, full([]Case{
		ofRelay("drain-poll", "drain", "drains a backlog with --mode poll", drainRelay(b, "--mode", "poll")),
	})...)
}

// spreadCases measure the maximum throughput with a quorum queue, with several queues, and with several relays.
func spreadCases(s Settings) []Case {
	b, spread, quorum := plain(s), plain(s), plain(s)
	spread.queues = 4
	quorum.spec.QueueType = "quorum"
	return []Case{
		limitOf("publish-quorum", "publish to a quorum queue", limitPublish(quorum)),
		ofRelay("drain-quorum", "publish-quorum", "drains to a quorum queue", drainRelay(quorum)),
		limitOf("publish-4-queues", "publish to four queues in turn", limitPublish(spread)),
		ofRelay("drain-4-queues", "publish-4-queues", "drains to four queues", drainRelay(spread)),
		ofRelay("stream-2-shards", "stream", "shares the stream with another one", streamShards(b, 2)),
		ofRelay("stream-4-shards", "stream", "shares the stream with three others", streamShards(b, 4)),
	}
}

// warmUp is how long a steady load runs before it is measured.
const warmUp = 2 * time.Second

// paceCases measure latency, and the cost of a message at low rates.
func paceCases(s Settings) []Case {
	var cases []Case
	for _, rate := range []int{500, 2000} {
		p := pace{
			rate: float64(rate), warmUp: warmUp, duration: s.Steady, spec: load.Spec{Bytes: s.Bytes},
		}
		direct := fmt.Sprintf("direct-%d", rate)
		about := fmt.Sprintf("insert %d/s and publish from the same process", rate)
		cases = append(cases, limitOf(direct, about, steady(p, byWriter)))
		name := fmt.Sprintf("relay-%d", rate)
		cases = append(cases, ofRelay(name, direct, fmt.Sprintf("streams %d/s", rate), steady(p, byRelay)))
	}
	// On few cores, the writers are faster than any relay, so a backlog grows while they write.
	out := pace{rate: math.Inf(1), messages: s.Messages, spec: load.Spec{Bytes: s.Bytes}}
	cases = append(cases, full([]Case{
		ofRelay("flat-out", "publish", "streams while many writers insert as fast as they can", steady(out, byRelay)),
	})...)
	return cases
}

// keyCases measure ordering keys.
func keyCases(s Settings) []Case {
	keyed, one, hot := plain(s), plain(s), plain(s)
	keyed.spec.Keys = s.Keys
	one.spec.Keys, one.messages = 1, max(s.Messages/20, 1)
	hot.spec.HotEvery = 20
	steadily := pace{rate: 500, warmUp: warmUp, duration: s.Steady, spec: keyed.spec}
	alone := s
	alone.Window = 1
	cases := []Case{
		ofRelay("drain-keyed", "drain", "drains a backlog with many ordering keys", drainRelay(keyed)),
		ofRelay("stream-keyed", "stream", "streams many ordering keys at full speed", streamPeak(keyed)),
	}
	return append(cases, full([]Case{
		ofRelay("drain-poll-keyed", "drain-keyed", "drains many ordering keys with --mode poll",
			drainRelay(keyed, "--mode", "poll")),
		ofRelay("relay-500-keyed", "relay-500", "streams 500/s with many ordering keys", steady(steadily, byRelay)),
		limitOf("publish-one", "publish with one message in flight", with(alone, limitPublish(one))),
		ofRelay("drain-one-key", "publish-one", "drains a backlog of one ordering key", drainRelay(one)),
		ofRelay("stream-hot-key", "stream", "streams at full speed, every 20th message of one key", streamPeak(hot)),
	})...)
}

// windowMB is how many messages of 1 MB the relay has in flight: its window has 32 MiB.
const windowMB = 32

// sizeCases measure large messages.
func sizeCases(s Settings) []Case {
	const kB, MB = 1000, 1_000_000
	var cases []Case
	for _, size := range []struct {
		name                    string
		bytes, messages, window int
	}{
		{"1kB", kB, s.Messages, s.Window},
		{"100kB", 100 * kB, max(s.Messages/20, 1), min(s.Window, 10*windowMB)},
		{"1MB", MB, max(s.Messages/200, 1), min(s.Window, windowMB)},
	} {
		b, settings := plain(s), s
		b.spec.Bytes, b.messages, settings.Window = size.bytes, size.messages, size.window
		about := "messages of " + size.name
		cases = append(cases,
			limitOf("publish-"+size.name, "publish "+about, with(settings, limitPublish(b))),
			ofRelay("drain-"+size.name, "publish-"+size.name, "drains "+about, drainRelay(b)),
			ofRelay("stream-"+size.name, "", "streams "+about+" at full speed", streamPeak(b)),
		)
	}
	one := plain(s)
	one.messages = 5 * s.Messages
	return append(cases,
		ofRelay("transaction", "", "streams a transaction of five times as many rows", streamTransaction(one)))
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
		one := ofRelay("backlog-"+size.name, "publish", "drains "+size.name+" rows", drainRelay(b))
		if size.messages >= 1_000_000 {
			one.Once, one.Least = true, time.Hour
		}
		cases = append(cases, one)
	}
	return cases
}

// besideCases measure what live messages wait while a backlog leaves. Those of the backlog do not count.
func besideCases(s Settings) (cases []Case) {
	for _, kind := range []struct {
		name, about string
		keys        int
	}{
		{"", "", 0}, {"-keyed", ", with many ordering keys", s.Keys}, {"-hot", ", with ten ordering keys", 10},
	} {
		b := plain(s)
		b.spec.Keys = kind.keys
		about := "publishes live messages beside a backlog" + kind.about
		cases = append(cases,
			ofRelay("beside"+kind.name, "", about, beside(b)),
			ofRelay("beside"+kind.name+"-poll", "", about+", with --mode poll", beside(b, "--mode", "poll")))
	}
	return cases
}

// heldCases measure the effect of dead rows. Only the last fifth counts.
func heldCases(s Settings) []Case {
	p := pace{
		rate: 1000, warmUp: s.Held * 4 / 5, duration: s.Held / 5, spec: load.Spec{Bytes: s.Bytes},
		byClock: true,
	}
	held := p
	held.held = true
	cases := []Case{
		ofRelay("long", "", "streams 1000/s for a long time", steady(p, byRelay)),
		ofRelay("long-held", "long", "does the same while a transaction stays open", steady(held, byRelay)),
	}
	for i := range cases {
		cases[i].Once, cases[i].Least = true, 2*s.Held+10*time.Minute
	}
	return cases
}
