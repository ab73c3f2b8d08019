package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
)

// options are the options of a run.
type options struct {
	duration      time.Duration
	seed          int64
	rate          float64
	relays        int
	relay         string   // the program
	rounds        int      // 0: as many as the duration allows
	runs          int      // 0: one, whose result is compared with no other
	drawn         []string // flags of the relay that this run of several has
	faults        []fault.Fault
	hold, pause   time.Duration
	overlap       float64 // 0 to 1
	recoverWithin time.Duration
	drainWithin   time.Duration // 0: no limit
	relayArgs     []string

	command string // the command line that repeats the run
}

// writers is how many connections write.
const writers = 4

func (o *options) appFlags() []cli.Flag {
	duration := func(name string, to *time.Duration, value time.Duration, usage string) cli.Flag {
		return &cli.DurationFlag{Name: name, Destination: to, Value: value, Usage: usage}
	}
	number := func(name string, to *int, value int, usage string) cli.Flag {
		return &cli.IntFlag{Name: name, Destination: to, Value: value, Usage: usage}
	}
	return []cli.Flag{
		duration("duration", &o.duration, 3*time.Minute, "how long to cause faults; the last one is then finished"),
		number("rounds", &o.rounds, 0, "end after so many rounds of faults (default: as many as --duration allows)"),
		number("runs", &o.runs, 0, "write the same messages in so many runs, draw --relays and the relay's settings "+
			"for each, and compare the results (default: one run)"),
		&cli.Int64Flag{
			Name: "seed", Destination: &o.seed, DefaultText: "random",
			Usage: "determines the messages and the order of the faults",
		},
		&cli.Float64Flag{
			Name: "rate", Destination: &o.rate, Value: 300, Usage: "messages a second, of all writers together",
		},
		number("relays", &o.relays, 2, "how many relays run"),
		&cli.StringFlag{
			Name: "relay", Destination: &o.relay,
			Usage: "`FILE`: the program to test (default: next to this program)",
		},
		&cli.StringFlag{
			Name: "faults", Usage: "`LIST` of names or patterns with commas between them; " +
				"none: no faults (default: all)",
		},
		duration("hold", &o.hold, 5*time.Second, "how long a fault lasts, plus or minus half"),
		duration("pause", &o.pause, 3*time.Second,
			"the pause between two faults, after the recovery from the first"),
		&cli.Float64Flag{
			Name: "overlap", Destination: &o.overlap, Value: 0.2,
			Usage: "the share of Postgres faults that coincide with one of RabbitMQ, 0 to 1",
		},
		duration("recover-within", &o.recoverWithin, 10*time.Second, "the limit for the first arrival after a fault"),
		duration("drain-within", &o.drainWithin, 0,
			"the limit for the last rows to leave the outbox at the end (default: none)"),
	}
}

// read reads what the flags do not set by themselves, and checks everything.
func (o *options) read(c *cli.Context) (err error) {
	o.relayArgs = c.Args().Slice()
	if first := c.Args().First(); first != "" && !strings.HasPrefix(first, "-") {
		return fmt.Errorf("unknown command %q, want list; flags for cdc-relay run go after --", first)
	}
	if !c.IsSet("seed") {
		o.seed = rand.Int64N(1 << 32)
	}
	list := c.String("faults")
	if o.runs > 0 {
		list = cmp.Or(list, sameResult)
	}
	if o.rate <= 0 || o.relays < 1 || o.hold <= 0 {
		return fmt.Errorf("--rate, --relays and --hold: want more than 0")
	}
	if o.faults, err = selectFaults(list, fault.All()); err != nil {
		return err
	}
	if o.relay == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		o.relay = filepath.Join(filepath.Dir(self), "cdc-relay")
	}
	if o.relay, err = exec.LookPath(o.relay); err != nil {
		return fmt.Errorf("--relay: %w", err)
	}
	if o.relay, err = filepath.Abs(o.relay); err != nil {
		return err
	}
	o.command = fmt.Sprint("cdc-relay-soak --seed ", o.seed)
	for _, arg := range os.Args[1:] {
		if strings.ContainsAny(arg, " *?[") {
			arg = "'" + arg + "'"
		}
		o.command += " " + arg
	}
	return nil
}

// selectFaults returns the listed faults. Each pattern must match at least one.
func selectFaults(list string, all []fault.Fault) ([]fault.Fault, error) {
	switch list {
	case "":
		return all, nil
	case "none":
		return nil, nil
	}
	picked := make(map[string]bool)
	for pattern := range strings.SplitSeq(list, ",") {
		fits := 0
		for _, f := range all {
			ok, err := path.Match(strings.TrimSpace(pattern), f.Name)
			if err != nil {
				return nil, fmt.Errorf("--faults: %q is not a pattern: %w", pattern, err)
			}
			if ok {
				fits++
				picked[f.Name] = true
			}
		}
		if fits == 0 {
			return nil, fmt.Errorf("--faults: there is no fault %q, see cdc-relay-soak list", pattern)
		}
	}
	return slices.DeleteFunc(all, func(f fault.Fault) bool { return !picked[f.Name] }), nil
}
