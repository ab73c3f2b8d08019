package main

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// config holds all values from flags, environment and file.
type config struct {
	// given tells where each value that is not a default comes from.
	given map[string]settings.Value
	// flags are the names of the command's flags. The file may have other settings.
	flags []string

	relay     relay.Config
	rabbitmq  amqpdial.Address
	publisher string
	handler   []string // the command of --publisher exec
	exchange  string

	httpAddr     string
	signals      signalFlags
	livenessFile string
	logLevel     slog.Level
	logFormat    string

	json     bool
	printSQL bool
	// tablesOnly: setup creates no publication and no slot.
	tablesOnly bool
	functions  bool
	setup      bool // run creates what is missing
	shards     int  // for setup and teardown: the number of shards; 0: only relay.Shard
	yes        bool
	tables     bool
	rate       float64
	count      int

	selected selectFlags
	checking checkFlags
	adopting adoptFlags
	console  consoleFlags
}

func defaultConfig() *config {
	return &config{
		given:     make(map[string]settings.Value),
		relay:     relay.DefaultConfig(),
		publisher: "amqp",
		httpAddr:  "127.0.0.1:9464",
		signals:   defaultSignalFlags(),
		logFormat: "auto",
		rate:      4,
		selected:  defaultSelectFlags(),
		console:   consoleFlags{listen: "127.0.0.1:9465"},
	}
}

// validate checks rules that involve more than one setting, and returns all mistakes.
func (c *config) validate() error {
	var wrong []error
	if err := c.relay.Validate(); err != nil {
		wrong = append(wrong, usagef("%s", inFlags(err)))
	}
	if of := c.relay.Shard.Of; c.shards > 0 && of > 0 && of != c.shards {
		wrong = append(wrong, usagef("--shards %d and --shard %s: "+
			"want one of them, or the same number of shards", c.shards, c.relay.Shard))
	}
	return errors.Join(wrong...)
}

// inFlags names flags in place of the fields with which the mistakes in a relay.Config begin.
func inFlags(err error) string {
	text := regexp.MustCompile(`(?m)^[A-Z]\w*`).ReplaceAllStringFunc(err.Error(), func(field string) string {
		return "--" + strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(field, "$1-$2"))
	})
	return strings.Replace(text, "--database-url is not set", notSet("database-url"), 1)
}

func (c *config) needAMQP() error {
	if !c.rabbitmq.IsSet() {
		return usagef("%s", notSet("amqp-url"))
	}
	return nil
}

// database is read again for each connection.
func (c *config) database() pgdial.Address {
	return pgdial.AddressOf(c.relay.DatabaseURL, c.relay.DatabaseURLFile)
}

// allNames returns the names of all shards with --shards, else of one.
func (c *config) allNames() []provision.Names {
	if c.shards == 0 {
		return []provision.Names{c.relay.Names()}
	}
	var all []provision.Names
	for _, shard := range outbox.ShardsOf(c.shards) {
		one := c.relay
		one.Shard = shard
		all = append(all, one.Names())
	}
	return all
}

// The usage of --metrics-header for commands that show messages, and of --yes for commands that ask a question.
const (
	showHeader = "Show this message header in a column of its own. Default: none."
	doNotAsk   = "Do not ask."
)

func connectionSettings() []setting {
	return append(serverSettings(), nameSettings()...)
}

func serverSettings() []setting {
	return []setting{
		{
			Info: settings.Info{
				Name: "config", Placeholder: "FILE", NotInFile: true,
				Usage: "Read settings from a YAML file; its keys are the names of the flags.",
			},
			Set: func(*config, string) error { return nil }, // the file is read before the other settings
		},
		settings.Text("database-url", "URL", "",
			"Postgres: postgres://user:password@host:5432/database, or key=value pairs as in psql. Required.",
			func(c *config) *string { return &c.relay.DatabaseURL }, checkDatabaseURL),
		settings.SecretFile("database-url", func(c *config, file string) { c.relay.DatabaseURLFile = file }),
		settings.Repeats(settings.Text("amqp-url", "URL,…", "",
			"RabbitMQ: amqp://user:password@host:5672/vhost, or amqps:// for TLS. "+
				"Several nodes of a cluster: host:5672,host:5672, or several URLs.",
			func(c *config) *string { return &c.rabbitmq.Value }, checkAMQPURL)),
		settings.SecretFile("amqp-url", func(c *config, file string) { c.rabbitmq.File = file }),
	}
}

func nameSettings() []setting {
	return []setting{
		settings.Parsed("table", "NAME", "public.outbox",
			"The outbox table, written as in SQL: in double quotes if it has capitals or dots.",
			func(c *config) *outbox.Table { return &c.relay.Table }, outbox.ParseTable),
		settings.Text("owner", "ROLE", "", "Another role that may own the tables. Its triggers run with your rights.",
			func(c *config) *string { return &c.relay.TableOwner }, checkRoleName),
		settings.Shared(settings.Text("slot", "NAME", "cdc_relay",
			"The replication slot, from which the leader streams.",
			func(c *config) *string { return &c.relay.Slot })),
		settings.Shared(settings.Text("publication", "NAME", "cdc_relay",
			"The publication of the outbox, which setup creates.",
			func(c *config) *string { return &c.relay.Publication })),
		settings.Shared(settings.Parsed("shard", "INDEX/OF", "0/1",
			"Publish this part of the rows, split by ordering key: 0/4 to 3/4 for four relays.",
			func(c *config) *outbox.Shard { return &c.relay.Shard }, outbox.ParseShard)),
		settings.Everywhere(settings.Switch("failover-slot",
			"Create the slot as a failover slot, which Postgres 17 and later copies to standbys.",
			func(c *config) *bool { return &c.relay.FailoverSlot })),
		settings.Shared(settings.Choice("mode", "auto",
			"auto: stream from the slot, and scan the table without a stream. "+
				"poll: only scan the table, for databases without logical replication.",
			func(c *config) *relay.Mode { return &c.relay.Mode }, "auto", "poll")),
		settings.Switch("setup", "First create what is missing, as the command setup does, and update older tables.",
			func(c *config) *bool { return &c.setup }),
	}
}

func serviceSettings() []setting {
	return append(signalSettings(), []setting{
		settings.MayBeEmpty(settings.Text("http-addr", "HOST:PORT", "127.0.0.1:9464",
			"Serve /livez, /readyz and /metrics (Prometheus) at this address; empty: nowhere.",
			func(c *config) *string { return &c.httpAddr }, settings.CheckHostPort)),
		settings.MayBeEmpty(settings.Text("liveness-file", "FILE", "",
			"A file written every second while the relay is live, and removed at the end. Default: none.",
			func(c *config) *string { return &c.livenessFile })),
		settings.Func("log-level", "debug|info|warn|error", "info", "Log this level and those above it.",
			func(c *config, text string) error {
				if err := settings.OneOf(text, "debug", "info", "warn", "error"); err != nil {
					return err
				}
				return c.logLevel.UnmarshalText([]byte(text))
			}),
		settings.Choice("log-format", "auto",
			"auto: text on a terminal, JSON otherwise. The log goes to the standard error.",
			func(c *config) *string { return &c.logFormat }, "auto", "text", "json"),
	}...)
}

func commandSettings() []setting {
	return []setting{
		settings.FlagOnly(settings.Switch("json", "JSON for scripts, with stable names.",
			func(c *config) *bool { return &c.json })),
		settings.FlagOnly(settings.Switch("tables-only", "Create no publication and no slot.",
			func(c *config) *bool { return &c.tablesOnly })),
		settings.Switch("functions", "Also create the SQL functions for applications.",
			func(c *config) *bool { return &c.functions }),
		settings.Switch("print-sql",
			"Print the SQL instead of running it. With setup, this needs no database.",
			func(c *config) *bool { return &c.printSQL }),
		settings.Number("shards", "",
			"All shards at once: this many slots and publications. Default: those of --shard.",
			1, outbox.MostShards, func(c *config) *int { return &c.shards }),
		settings.FlagOnly(settings.Switch("yes", "Do not ask; with check --fix: run the repairs.",
			func(c *config) *bool { return &c.yes })),
		settings.FlagOnly(settings.Switch("tables", "Also drop the tables. Fails while they contain messages.",
			func(c *config) *bool { return &c.tables })),
		settings.Parsed("rate", "NUMBER", "4", "Orders per second, 0.1 to 1000.",
			func(c *config) *float64 { return &c.rate }, rateUpTo(1000)),
		settings.Number("count", "", "Stop after this many orders. Default: continue until Ctrl-C.",
			1, 1_000_000_000, func(c *config) *int { return &c.count }),
	}
}

func rateUpTo(most float64) func(text string) (float64, error) {
	return func(text string) (float64, error) {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate >= 0.1 && rate <= most) {
			return 0, fmt.Errorf("%q: want a number from 0.1 to %.0f", text, most)
		}
		return rate, nil
	}
}

// tableFlag returns the --table flag that a command for this table needs.
func (c *config) tableFlag() string { return show.TableFlag(c.relay.Table) }
