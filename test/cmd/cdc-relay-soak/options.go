package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
	"github.com/cdc-relay/cdc-relay/test/soak/load"
	"github.com/cdc-relay/cdc-relay/test/soak/subject"
)

// options are the checked options of a run.
type options struct {
	duration         time.Duration
	seed             int64
	rate             float64
	writers, relays  int
	relay            string           // the program; empty: search for it
	subject          *subject.Subject // nil: cdc-relay, with everything that only it can do
	rounds           int              // 0: as many as the duration allows
	runs             int              // 0: one, whose result is compared with no other
	drawn            []string         // flags of the relay that this run of several has
	faults           []fault.Fault
	hold, pause      time.Duration
	overlap          float64 // 0 to 1
	recoverWithin    time.Duration
	drainWithin      time.Duration // 0: no limit
	standby, cluster bool
	json, keep       string // a file and a folder; empty: none
	relayArgs        []string

	flags map[string]string // all flags as text, for the report
}

func runFlags() []cli.Flag {
	text := func(name, usage string) cli.Flag { return &cli.StringFlag{Name: name, Usage: usage} }
	number := func(name string, value int, usage string) cli.Flag {
		return &cli.IntFlag{Name: name, Value: value, Usage: usage}
	}
	duration := func(name string, value time.Duration, usage string) cli.Flag {
		return &cli.DurationFlag{Name: name, Value: value, Usage: usage}
	}
	real := func(name string, value float64, usage string) cli.Flag {
		return &cli.Float64Flag{Name: name, Value: value, Usage: usage}
	}
	is := func(name, usage string) cli.Flag { return &cli.BoolFlag{Name: name, Usage: usage} }
	return []cli.Flag{
		duration("duration", 3*time.Minute, "how long to cause faults; the last one is then finished"),
		number("rounds", 0, "end after so many rounds of faults (default: as many as --duration allows)"),
		number("runs", 0, "write the same messages in so many runs, draw --relays and the relay's settings for each, "+
			"and compare the results (default: one run)"),
		text("subject", "`NAME` of a program to compare ("+subject.Names()+"): "+
			"only messages and faults that concern each of them"),
		&cli.Int64Flag{
			Name: "seed", Usage: "determines the messages and the order of the faults", DefaultText: "random",
		},
		real("rate", 300, "messages a second, of all writers together"),
		number("writers", 4, "how many connections write"),
		number("relays", 2, "how many relays run"),
		text("relay", "`FILE`: the program to test (default: next to this program)"),
		text("faults", "`LIST` of names or patterns with commas between them; "+
			"none: no faults (default: all that are possible here)"),
		duration("hold", 5*time.Second, "how long a fault lasts, plus or minus half"),
		duration("pause", 3*time.Second, "the pause between two faults, after the recovery from the first"),
		real("overlap", 0.2, "the share of Postgres faults that coincide with one of RabbitMQ, 0 to 1"),
		duration("recover-within", 10*time.Second, "the limit for the first arrival after a fault"),
		duration("drain-within", 0, "the limit for the last rows to leave the outbox at the end (default: none)"),
		is("standby", "give Postgres a standby, for the faults that promote it"),
		is("cluster", "three RabbitMQ nodes with quorum queues, for the faults that stop their majority"),
		text("json", "`FILE`: write the report as JSON"),
		text("keep", "`FOLDER`: keep the history and the logs there (default: only if a violation was found)"),
	}
}

// readOptions checks the flags.
func readOptions(c *cli.Context) (*options, error) {
	o := &options{
		duration:      c.Duration("duration"),
		seed:          c.Int64("seed"),
		rate:          c.Float64("rate"),
		writers:       c.Int("writers"),
		relays:        c.Int("relays"),
		relay:         c.String("relay"),
		rounds:        c.Int("rounds"),
		runs:          c.Int("runs"),
		hold:          c.Duration("hold"),
		pause:         c.Duration("pause"),
		overlap:       c.Float64("overlap"),
		recoverWithin: c.Duration("recover-within"),
		drainWithin:   c.Duration("drain-within"),
		standby:       c.Bool("standby"),
		cluster:       c.Bool("cluster"),
		json:          c.String("json"),
		keep:          c.String("keep"),
		relayArgs:     c.Args().Slice(),
	}
	if first := c.Args().First(); first != "" && !strings.HasPrefix(first, "-") {
		return nil, usagef("unknown command %q, want list or table; flags for cdc-relay run go after --", first)
	}
	if !c.IsSet("seed") {
		o.seed = rand.Int64N(1 << 32)
	}
	list := c.String("faults")
	if name := c.String("subject"); name != "" {
		found, ok := subject.Find(name)
		if !ok {
			return nil, usagef("--subject: want one of %s", subject.Names())
		}
		o.subject = &found
		list = cmp.Or(list, subject.Faults())
	}
	if o.runs > 0 {
		list = cmp.Or(list, sameResult)
	}
	if err := o.inRange(); err != nil {
		return nil, err
	}
	var err error
	if o.faults, err = selectFaults(list, fault.All()); err != nil {
		return nil, err
	}
	o.flags = make(map[string]string)
	for _, f := range runFlags() {
		name := f.Names()[0]
		o.flags[name] = fmt.Sprint(c.Value(name))
	}
	o.flags["seed"] = fmt.Sprint(o.seed)
	return o, nil
}

// inRange refuses what would hang, or would be another run than was meant.
func (o *options) inRange() error {
	switch {
	case o.rate <= 0 || o.writers < 1 || o.relays < 1 || o.hold <= 0:
		return usagef("--rate, --writers, --relays and --hold: want more than 0")
	case o.runs > 0 && o.subject != nil:
		return usagef("--runs: it compares runs of cdc-relay; leave out --subject")
	}
	return nil
}

// peer reports whether the program under test is another than cdc-relay.
func (o *options) peer() bool { return o.subject != nil && o.subject.Name != subject.Relay }

// program is the name of the program under test.
func (o *options) program() string {
	if o.subject == nil {
		return subject.Relay
	}
	return o.subject.Program()
}

// form is how the writers insert; nil: as for cdc-relay, with every kind of message.
func (o *options) form() *load.Form {
	if o.subject == nil {
		return nil
	}
	return &o.subject.Form
}

// selectFaults returns the listed faults. Each pattern must match at least one.
func selectFaults(list string, all []fault.Fault) ([]fault.Fault, error) {
	switch list {
	case "":
		return all, nil
	case "none":
		return nil, nil
	}
	var picked []fault.Fault
	for pattern := range strings.SplitSeq(list, ",") {
		fits := 0
		for _, f := range all {
			ok, err := path.Match(strings.TrimSpace(pattern), f.Name)
			if err != nil {
				return nil, usagef("--faults: %q is not a pattern: %s", pattern, err)
			}
			if !ok {
				continue
			}
			fits++
			if !slices.ContainsFunc(picked, func(p fault.Fault) bool { return p.Name == f.Name }) {
				picked = append(picked, f)
			}
		}
		if fits == 0 {
			return nil, usagef("--faults: there is no fault %q, see cdc-relay-soak list", pattern)
		}
	}
	return picked, nil
}

// command returns the command line that repeats this run.
func (o *options) command(args []string) string {
	args = args[min(1, len(args)):]
	words := []string{"cdc-relay-soak"}
	if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--seed") }) {
		words = append(words, "--seed", fmt.Sprint(o.seed))
	}
	for _, arg := range args {
		words = append(words, quote(arg))
	}
	return strings.Join(words, " ")
}

// quote quotes a word for the shell.
func quote(word string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]+$`).MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
