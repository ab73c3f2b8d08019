// Package bench measures the relay and its limits on its own servers. Cases take turns in rounds, so that other load on
// the machine affects all of them alike. The command line is test/cmd/cdc-relay-bench.
package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Settings are the sizes of the runs.
type Settings struct {
	Messages  int           // the size of the backlog, and the number of messages at full speed
	Bytes     int           // the size of a body
	Keys      int           // how many ordering keys are used in cases with keys
	QueueType string        // such as "quorum"; "": the server's default
	Steady    time.Duration // the duration of a steady load
}

// Case is one thing to measure: what publishes messages, and how they come into its table.
type Case struct {
	Name   string
	About  string // one line for people
	Beside string // the case to compare the rate with; "": none

	limit   bool   // what the relay is compared with: the AMQP library alone, which reads no table
	program string // the cdc-relay to measure
	spec    Spec
	backlog int     // messages that wait when the publisher starts
	warmUp  int     // messages that are written first and do not count
	written int     // messages that are written afterwards
	rate    float64 // of many writers, in a second; 0: a single writer, as fast as the messages arrive
}

func (c Case) total() int { return c.backlog + c.warmUp + c.written }

// Against returns the cases, and after each case of the relay the same case with another build of it.
func Against(cases []Case, program string) (all []Case) {
	for _, one := range cases {
		all = append(all, one)
		if !one.limit {
			one.Name, one.program = one.Name+"@other", program
			all = append(all, one)
		}
	}
	return all
}

// Cases returns all cases of a relay, each limit before the cases that are compared with it.
func Cases(relay string, s Settings) []Case {
	plain := Spec{Bytes: s.Bytes, QueueType: s.QueueType}
	keyed := plain
	keyed.Keys = s.Keys
	cases := []Case{
		{Name: "publish", About: "limit: the AMQP library alone", limit: true, spec: plain, backlog: s.Messages},
		{Name: "drain", About: "the relay drains a backlog", Beside: "publish", spec: plain, backlog: s.Messages},
		{
			Name: "publish-written", About: "limit: publish while the same number of rows is written",
			limit: true, spec: plain, written: s.Messages,
		},
		{
			Name: "stream", About: "the relay streams rows that are written at full speed", Beside: "publish-written",
			spec: plain, written: s.Messages,
		},
		{Name: "drain-keyed", About: "drain, ordering keys", Beside: "drain", spec: keyed, backlog: s.Messages},
		{Name: "stream-keyed", About: "stream, ordering keys", Beside: "stream", spec: keyed, written: s.Messages},
	}
	for _, rate := range []int{500, 2000} {
		cases = append(cases, Case{
			Name: fmt.Sprintf("relay-%d", rate), About: fmt.Sprintf("the relay streams %d/s", rate),
			spec: plain, rate: float64(rate), warmUp: 2 * rate,
			written: max(int(s.Steady.Seconds()*float64(rate)), 1),
		})
	}
	for i := range cases {
		cases[i].program = relay
	}
	return cases
}

// Site has the servers of a benchmark.
type Site struct {
	Postgres  *services.Postgres
	RabbitMQ  *services.RabbitMQ
	self      string   // this program: with the argument "limit" it runs RunLimit
	folder    string   // for logs
	relayArgs []string // more flags for cdc-relay run
}

// OpenSite starts private servers, with more settings of Postgres. The caller closes it.
func OpenSite(ctx context.Context, self, folder string, settings, relayArgs []string, log func(string)) (*Site, error) {
	s := &Site{self: self, folder: folder, relayArgs: relayArgs}
	// Timed work would disturb some runs: a checkpoint comes before each.
	quiet := []string{"shared_buffers=256MB", "autovacuum_naptime=1h", "checkpoint_timeout=1h", "max_wal_size=16GB"}
	var err error
	s.Postgres, err = services.StartPostgres(ctx,
		services.Options{Private: true, Settings: append(quiet, settings...), Log: log})
	if err != nil {
		return nil, err
	}
	if s.RabbitMQ, err = services.StartRabbitMQ(ctx, services.Options{Private: true, Log: log}); err != nil {
		return nil, errors.Join(err, s.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// Close stops the servers.
func (s *Site) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := s.Postgres.Close(ctx)
	if s.RabbitMQ != nil {
		err = errors.Join(err, s.RabbitMQ.Close(ctx))
	}
	return err
}
