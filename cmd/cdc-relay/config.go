package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/replication"
)

// config holds all values from flags, environment and file.
type config struct {
	// given tells where each value that is not a default comes from.
	given map[string]settings.Value
	// flags are the names of the command's flags. The file may have other settings.
	flags []string

	relay          relay.Config
	rabbitmq       amqpdial.Address
	publisher      string
	handler        []string // the command of --publisher exec
	exchange       string
	outageCooldown time.Duration

	httpAddr     string
	signals      signalFlags
	livenessFile string
	logLevel     slog.Level
	logFormat    string

	format   string
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
		given:          make(map[string]settings.Value),
		relay:          relay.DefaultConfig(),
		publisher:      "amqp",
		outageCooldown: 30 * time.Second,
		httpAddr:       "127.0.0.1:9464",
		signals:        defaultSignalFlags(),
		logFormat:      "auto",
		format:         formatTable,
		rate:           4,
		selected:       defaultSelectFlags(),
		console:        consoleFlags{listen: "127.0.0.1:9465"},
	}
}

// validate checks rules that involve more than one setting, and returns all mistakes.
func (c *config) validate() error {
	var wrong []error
	if err := c.relay.Validate(); err != nil {
		wrong = append(wrong, usagef("%s", err))
	}
	if of := c.relay.Shard.Of; c.shards > 0 && of > 0 && of != c.shards {
		wrong = append(wrong, usagef("--shards %d and --shard %s: "+
			"want one of them, or the same number of shards", c.shards, c.relay.Shard))
	}
	if least := 100 * time.Millisecond; c.outageCooldown < least {
		wrong = append(wrong, usagef("--outage-cooldown %s: want at least %s", c.outageCooldown, least))
	}
	return errors.Join(wrong...)
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

func (c *config) names() replication.Names {
	return c.relay.Names()
}

// allNames returns the names of all shards with --shards, else of one.
func (c *config) allNames() []replication.Names {
	if c.shards == 0 {
		return []replication.Names{c.names()}
	}
	var all []replication.Names
	for _, shard := range outbox.ShardsOf(c.shards) {
		one := c.relay
		one.Shard = shard
		all = append(all, one.Names())
	}
	return all
}

// The usage of --yes for commands that ask a question, of --metrics-header for commands that show messages, and of
// --http-addr for commands that ask a relay. For run, --http-addr is the address to listen on.
const (
	showHeader     = "Show this message header in a column of its own. Default: none."
	askForNumbers  = "Ask the relay at this address for its settings, throughput and latency; empty: ask none."
	doNotAsk       = "Do not ask."
	askForState    = "Ask the relay at this address for its settings, and whether it can publish; empty: ask none."
	askForSettings = "Ask the relay at this address for its settings; empty: ask none."
)

func connectionSettings() []setting {
	return slices.Concat(serverSettings(), amqpFileSettings(), nameSettings())
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
		{
			Info: settings.Info{
				Name: "database-url", Placeholder: "URL",
				Usage: "Postgres: postgres://user:password@host:5432/database, " +
					"or key=value pairs as in psql. Required.",
			},
			Set: func(c *config, text string) error {
				c.relay.DatabaseURL = text
				return checkDatabaseURL(text)
			},
		},
		settings.SecretFile("database-url", func(c *config, file string) { c.relay.DatabaseURLFile = file }),
		{
			Info: settings.Info{
				Name: "amqp-url", Placeholder: "URL,…", Repeats: true,
				Usage: "RabbitMQ: amqp://user:password@host:5672/vhost, or amqps:// for TLS. " +
					"Several nodes of a cluster: host:5672,host:5672, or several URLs.",
			},
			Set: func(c *config, text string) error {
				c.rabbitmq.Value = text
				return checkAMQPURL(text)
			},
		},
	}
}

func nameSettings() []setting {
	return []setting{
		{
			Info: settings.Info{
				Name: "table", Placeholder: "NAME", Default: "public.outbox",
				Usage: "The outbox table, written as in SQL: in double quotes if it has capitals or dots.",
			},
			Set: func(c *config, text string) error {
				table, err := outbox.ParseTable(text)
				if err == nil {
					c.relay.Table = table
				}
				return err
			},
		},
		{
			Info: settings.Info{
				Name: "owner", Placeholder: "ROLE",
				Usage: "Another role that may own the tables. Its triggers run with your rights.",
			},
			Set: func(c *config, text string) error {
				c.relay.TableOwner = text
				return checkRoleName(text)
			},
		},
		{
			Info: settings.Info{
				Name: "slot", Shared: true, Placeholder: "NAME", Default: "cdc_relay",
				Usage: "The replication slot. It is also the lock: the relay that owns it is the leader.",
			},
			Set: func(c *config, text string) error { c.relay.Slot = text; return nil },
		},
		{
			Info: settings.Info{
				Name: "publication", Shared: true, Placeholder: "NAME", Default: "cdc_relay",
				Usage: "The publication of the outbox, which setup creates.",
			},
			Set: func(c *config, text string) error { c.relay.Publication = text; return nil },
		},
		{
			Info: settings.Info{
				Name: "shard", Shared: true, Placeholder: "INDEX/OF", Default: "0/1",
				Usage: "Publish this part of the rows, split by ordering key: " +
					"0/4 to 3/4 for four relays. Needs Postgres 15.",
			},
			Set: func(c *config, text string) (err error) {
				c.relay.Shard, err = outbox.ParseShard(text)
				return err
			},
		},
		settings.Switch("failover-slot",
			"Create the slot as a failover slot, which Postgres 17 and later copies to standbys.",
			func(c *config) *bool { return &c.relay.FailoverSlot }),
		{
			Info: settings.Info{
				Name: "mode", Shared: true, Placeholder: "auto|poll", Default: "auto",
				Usage: "auto: stream from the slot, and scan the table without a stream. " +
					"poll: only scan the table, for databases without logical replication.",
			},
			Set: func(c *config, text string) error { return settings.Choose(&c.relay.Mode, text, "auto", "poll") },
		},
		settings.Switch("setup", "First create what is missing, as the command setup does, and update older tables.",
			func(c *config) *bool { return &c.setup }),
	}
}

func serviceSettings() []setting {
	return append(signalSettings(), []setting{
		{
			Info: settings.Info{
				Name: relayAddress, Placeholder: "HOST:PORT", Default: "127.0.0.1:9464", MayBeEmpty: true,
				Usage: "Serve /livez, /readyz, /metrics (Prometheus) and /settings at this address; empty: nowhere.",
			},
			Set: func(c *config, text string) error { c.httpAddr = text; return settings.CheckHostPort(text) },
		},
		{
			Info: settings.Info{
				Name: "liveness-file", Placeholder: "FILE", MayBeEmpty: true,
				Usage: "A file written every second while the relay is live, and removed at the end. Default: none.",
			},
			Set: func(c *config, text string) error { c.livenessFile = text; return nil },
		},
		{
			Info: settings.Info{
				Name: "log-level", Placeholder: "debug|info|warn|error", Default: "info",
				Usage: "Log this level and those above it.",
			},
			Set: func(c *config, text string) error {
				if err := settings.OneOf(text, "debug", "info", "warn", "error"); err != nil {
					return err
				}
				return c.logLevel.UnmarshalText([]byte(text))
			},
		},
		{
			Info: settings.Info{
				Name: "log-format", Placeholder: "auto|text|json", Default: "auto",
				Usage: "auto: text on a terminal, JSON otherwise. The log goes to the standard error.",
			},
			Set: func(c *config, text string) error {
				c.logFormat = text
				return settings.OneOf(text, "auto", "text", "json")
			},
		},
	}...)
}

func commandSettings() []setting {
	return []setting{
		formatSetting(),
		jsonSetting(),
		settings.FlagOnly(settings.Switch("tables-only", "Create no publication and no slot.",
			func(c *config) *bool { return &c.tablesOnly })),
		settings.Switch("functions", "Also create the SQL functions for applications.",
			func(c *config) *bool { return &c.functions }),
		settings.Switch("print-sql",
			"Print the SQL for psql instead of running it. With setup, this needs no database.",
			func(c *config) *bool { return &c.printSQL }),
		{
			Info: settings.Info{
				Name: "shards", Placeholder: "NUMBER",
				Usage: "All shards at once: this many slots and publications. Default: those of --shard.",
			},
			Set: func(c *config, text string) (err error) {
				c.shards, err = strconv.Atoi(text)
				if err != nil || c.shards < 1 || c.shards > outbox.MostShards {
					return fmt.Errorf("%q: want a whole number from 1 to %d", text, outbox.MostShards)
				}
				return nil
			},
		},
		settings.FlagOnly(settings.Switch("yes", "Do not ask; with check --fix: run the repairs.",
			func(c *config) *bool { return &c.yes })),
		settings.FlagOnly(settings.Switch("tables", "Also drop the tables. Fails while they contain messages.",
			func(c *config) *bool { return &c.tables })),
		{
			Info: settings.Info{
				Name: "rate", Placeholder: "NUMBER", Default: "4",
				Usage: "Orders per second, 0.1 to 1000.",
			},
			Set: func(c *config, text string) (err error) {
				c.rate, err = strconv.ParseFloat(text, 64)
				if err != nil || !(c.rate >= 0.1 && c.rate <= 1000) {
					return fmt.Errorf("%q: want a number from 0.1 to 1000", text)
				}
				return nil
			},
		},
		{
			Info: settings.Info{
				Name: "count", Placeholder: "NUMBER",
				Usage: "Stop after this many orders. Default: continue until Ctrl-C.",
			},
			Set: func(c *config, text string) (err error) {
				c.count, err = strconv.Atoi(text)
				if err != nil || c.count < 1 {
					return fmt.Errorf("%q: want a whole number from 1", text)
				}
				return nil
			},
		},
	}
}

// tableFlag returns the --table flag that a command for this table needs.
func (c *config) tableFlag() string { return show.TableFlag(c.relay.Table) }
