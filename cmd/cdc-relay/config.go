package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
	"github.com/cdc-relay/cdc-relay/replication"
)

// config holds all values from flags, environment and file.
type config struct {
	// given tells where each value that is not a default comes from.
	given map[string]given

	relay          relay.Config
	amqpURL        string
	files          fileNames
	publisher      string
	handler        []string // the command of --publisher exec
	exchange       string
	outageCooldown time.Duration

	httpAddr     string
	signalling   signalling
	livenessFile string
	logLevel     slog.Level
	logFormat    string

	format    string
	printSQL  bool
	functions bool
	shards    int // for setup and teardown: the number of shards; 0: only relay.Shard
	yes       bool
	tables    bool
	rate      float64
	count     int

	looking  looking
	checking checking
	adopting adopting
	console  consoleFlags
}

func defaultConfig() *config {
	return &config{
		given:          make(map[string]given),
		relay:          relay.DefaultConfig(),
		publisher:      "amqp",
		outageCooldown: 30 * time.Second,
		httpAddr:       "127.0.0.1:9464",
		signalling:     defaultSignalling(),
		logFormat:      "auto",
		format:         formatTable,
		rate:           4,
		looking:        defaultLooking(),
		console:        consoleFlags{listen: "127.0.0.1:9465"},
	}
}

// validate checks rules that involve more than one setting, and returns all mistakes.
func (c *config) validate() error {
	var wrong []error
	checked := c.relay
	if checked.DatabaseURL == "" {
		checked.DatabaseURL = c.files.databaseURL // a file that cannot be read is another mistake
	}
	if err := checked.Validate(); err != nil {
		wrong = append(wrong, usagef("%s", err))
	}
	if of := c.relay.Shard.Of; c.shards > 0 && of > 0 && of != c.shards {
		wrong = append(wrong, usagef("--shards %d and --shard %s: want one of them, or the same number of shards", c.shards, c.relay.Shard))
	}
	if least := 100 * time.Millisecond; c.outageCooldown < least {
		wrong = append(wrong, usagef("--outage-cooldown %s: want at least %s", c.outageCooldown, least))
	}
	return errors.Join(wrong...)
}

func (c *config) needAMQP() error {
	if c.amqpURL == "" && c.files.amqpURL == "" {
		return usagef("%s", notSet("amqp-url"))
	}
	return nil
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
		all = append(all, replication.NamesOf(c.relay.Table, c.relay.Publication, c.relay.Slot, shard))
	}
	return all
}

// flags returns the named settings as flags, in the order of the help page.
func flags(names ...string) []cli.Flag {
	all := allSettings()
	names = withRelated(names)
	picked := make([]cli.Flag, len(names))
	for i, name := range names {
		at := slices.IndexFunc(all, func(s *setting) bool { return s.name == name })
		picked[i] = all[at]
	}
	return picked
}

// The usage of --yes for commands that ask a question, and of --http-addr for commands that ask a relay. For run,
// --http-addr is the address to listen on.
const (
	askForNumbers = "Ask the relay at this address for throughput and latency; empty: ask none."
	doNotAsk      = "Do not ask."
	askForState   = "Ask the relay at this address whether it can publish; empty: ask none."
)

// usages are texts for the help page of one command, by the name of the flag.
type usages map[string]string

// describe replaces the usage of flags that mean something else for this command.
func describe(picked []cli.Flag, texts usages) []cli.Flag {
	for _, s := range settingsOf(picked) {
		if text, ok := texts[s.name]; ok {
			s.usage = text
		}
	}
	return picked
}

func allSettings() []*setting {
	return slices.Concat(connectionSettings(), relaySettings(), retrySettings(), serviceSettings(), commandSettings(), lookingSettings(), checkSettings(), adoptSettings(), consoleSettings())
}

func connectionSettings() []*setting {
	return slices.Concat(serverSettings(), amqpFileSettings(), nameSettings())
}

func serverSettings() []*setting {
	return []*setting{
		{
			name: "config", value: "FILE", notInFile: true,
			usage: "Read settings from a YAML file; its keys are the names of the flags.",
			set:   func(*config, string) error { return nil }, // the file is read before the other settings
		},
		{
			name: "database-url", value: "URL",
			usage: "Postgres: postgres://user:password@host:5432/database, or key=value pairs as in psql. Required.",
			set: func(c *config, text string) error {
				c.relay.DatabaseURL = text
				return checkDatabaseURL(text)
			},
		},
		databaseFileSetting(),
		{
			name: "amqp-url", value: "URL",
			usage: "RabbitMQ: amqp://user:password@host:5672/vhost, or amqps:// for TLS.",
			set: func(c *config, text string) error {
				c.amqpURL = text
				return checkAMQPURL(text)
			},
		},
	}
}

func nameSettings() []*setting {
	return []*setting{
		{
			name: "table", value: "NAME", byDefault: "public.outbox",
			usage: "The outbox table, written as in SQL: in double quotes if it has capitals or dots.",
			set: func(c *config, text string) error {
				table, err := outbox.ParseTable(text)
				if err == nil {
					c.relay.Table = table
				}
				return err
			},
		},
		{
			name: "slot", value: "NAME", byDefault: "cdc_relay",
			usage: "The replication slot. It is also the lock: the relay that owns it is the leader.",
			set:   func(c *config, text string) error { c.relay.Slot = text; return nil },
		},
		{
			name: "publication", value: "NAME", byDefault: "cdc_relay",
			usage: "The publication of the outbox, which setup creates.",
			set:   func(c *config, text string) error { c.relay.Publication = text; return nil },
		},
		{
			name: "shard", value: "INDEX/OF", byDefault: "0/1",
			usage: "Publish this part of the rows, split by ordering key: 0/4 to 3/4 for four relays. Needs Postgres 15.",
			set: func(c *config, text string) (err error) {
				c.relay.Shard, err = outbox.ParseShard(text)
				return err
			},
		},
		{
			name: "mode", value: "auto|poll", byDefault: "auto",
			usage: "auto: stream from the slot, and scan the table without a stream. " +
				"poll: only scan the table, for databases without logical replication.",
			set: func(c *config, text string) error { return choose(&c.relay.Mode, text, "auto", "poll") },
		},
	}
}

func relaySettings() []*setting {
	return []*setting{
		{
			name: "publisher", value: "amqp|stdout|exec", byDefault: "amqp",
			usage: "amqp: RabbitMQ. stdout: write one JSON line for each message. " +
				"exec: give these lines to the program after --, and read the outcomes from it.",
			set: func(c *config, text string) error { c.publisher = text; return oneOf(text, "amqp", "stdout", "exec") },
		},
		{
			name: "exchange", value: "NAME", byDefault: "'', the default exchange", mayBeEmpty: true,
			usage: "The exchange for rows without one.",
			set: func(c *config, text string) error {
				c.exchange = text
				return checkName(text)
			},
		},
		{
			name: "header-columns", value: "NAME,…", mayBeEmpty: true,
			usage: "Columns of the application to send as headers. Default: none.",
			set: func(c *config, text string) error {
				if c.relay.HeaderColumns = nil; text == "" {
					return nil
				}
				for name := range strings.SplitSeq(text, ",") {
					c.relay.HeaderColumns = append(c.relay.HeaderColumns, strings.TrimSpace(name))
				}
				return nil
			},
		},
		{
			name: "ordering-key-header", value: "NAME", mayBeEmpty: true,
			usage: "Send the ordering key as a header of this name. Default: none.",
			set:   func(c *config, text string) error { c.relay.OrderingKeyHeader = text; return nil },
		},
		intSetting("batch-size", "500", "Maximum number of rows in one SQL statement.",
			func(c *config) *int { return &c.relay.BatchSize }),
		intSetting("max-in-flight", "2000", "Maximum number of messages in memory. After a kill -9, at most this many are published again.",
			func(c *config) *int { return &c.relay.MaxInFlight }),
		durationSetting("poll-interval", "1s", "How often to look for due messages.",
			func(c *config) *time.Duration { return &c.relay.PollInterval }),
		durationSetting("send-timeout", "10s", "How long to wait for RabbitMQ's confirm.",
			func(c *config) *time.Duration { return &c.relay.SendTimeout }),
		durationSetting("shutdown-timeout", "30s", "How long to finish the messages in flight after SIGTERM or Ctrl-C.",
			func(c *config) *time.Duration { return &c.relay.ShutdownTimeout }),
	}
}

func retrySettings() []*setting {
	return []*setting{
		intSetting("max-retries", "5", "How often to retry a message that RabbitMQ rejects, before it becomes a dead letter. Outages do not count.",
			func(c *config) *int { return &c.relay.MaxRetries }),
		durationSetting("backoff-time", "120s", "The wait before the first retry; it doubles with each retry.",
			func(c *config) *time.Duration { return &c.relay.BackoffTime }),
		durationSetting("max-backoff", "1h", "The longest wait before a retry.",
			func(c *config) *time.Duration { return &c.relay.MaxBackoff }),
		durationSetting("stale-timeout", "5s", "When the slot has been free for this long, every relay publishes rows that are at least this old.",
			func(c *config) *time.Duration { return &c.relay.StaleTimeout }),
		durationSetting("outage-cooldown", "30s", "How long publishing pauses after two outages in a row.",
			func(c *config) *time.Duration { return &c.outageCooldown }),
		durationSetting("dead-letter-retention", "0s", "The age at which dead letters are deleted; 0s: never. "+
			"With --on-dead-letter block, those with an ordering key stay.",
			func(c *config) *time.Duration { return &c.relay.DeadLetterRetention }),
		durationSetting("keep-published", "0s", "Keep published messages this long, in a table that setup creates with the same setting; 0s: delete them. "+
			"Deletes whole days.",
			func(c *config) *time.Duration { return &c.relay.KeepPublished }),
		{
			name: "on-dead-letter", value: "continue|block", byDefault: "continue",
			usage: "What an ordering key does after a dead letter: " +
				"continue, or wait until the dead letter is requeued or purged.",
			set: func(c *config, text string) error { return choose(&c.relay.OnDeadLetter, text, "continue", "block") },
		},
		{
			name: "on-expired", value: "dead-letter|drop", byDefault: "dead-letter",
			usage: "What to do with a message whose expires_at has passed: make it a dead letter, or delete it.",
			set:   func(c *config, text string) error { return choose(&c.relay.OnExpired, text, "dead-letter", "drop") },
		},
	}
}

func serviceSettings() []*setting {
	return append(signalSettings(), []*setting{
		{
			name: "http-addr", value: "HOST:PORT", byDefault: "127.0.0.1:9464", mayBeEmpty: true,
			usage: "Serve /livez, /readyz and /metrics (Prometheus) at this address; empty: nowhere.",
			set:   func(c *config, text string) error { c.httpAddr = text; return checkHostPort(text) },
		},
		{
			name: "liveness-file", value: "FILE", mayBeEmpty: true,
			usage: "A file written every second while the relay is live, and removed at the end. Default: none.",
			set:   func(c *config, text string) error { c.livenessFile = text; return nil },
		},
		{
			name: "log-level", value: "debug|info|warn|error", byDefault: "info",
			usage: "Log this level and those above it.",
			set: func(c *config, text string) error {
				if err := oneOf(text, "debug", "info", "warn", "error"); err != nil {
					return err
				}
				return c.logLevel.UnmarshalText([]byte(text))
			},
		},
		{
			name: "log-format", value: "auto|text|json", byDefault: "auto",
			usage: "auto: text on a terminal, JSON otherwise. The log goes to the standard error.",
			set:   func(c *config, text string) error { c.logFormat = text; return oneOf(text, "auto", "text", "json") },
		},
	}...)
}

func commandSettings() []*setting {
	return []*setting{
		formatSetting(),
		jsonSetting(),
		switchSetting("functions", "Also create the SQL functions for applications.",
			func(c *config) *bool { return &c.functions }),
		switchSetting("print-sql", "Print the SQL for psql instead of running it. With setup, this needs no database.",
			func(c *config) *bool { return &c.printSQL }),
		{
			name: "shards", value: "NUMBER",
			usage: "All shards at once: this many slots and publications. Default: those of --shard.",
			set: func(c *config, text string) (err error) {
				c.shards, err = strconv.Atoi(text)
				if err != nil || c.shards < 1 || c.shards > outbox.MostShards {
					return fmt.Errorf("%q: want a whole number from 1 to %d", text, outbox.MostShards)
				}
				return nil
			},
		},
		flagOnly(switchSetting("yes", "Do not ask; with check --fix: run the repairs.", func(c *config) *bool { return &c.yes })),
		flagOnly(switchSetting("tables", "Also drop the tables. Fails while they contain messages.",
			func(c *config) *bool { return &c.tables })),
		{
			name: "rate", value: "NUMBER", byDefault: "4",
			usage: "Orders per second, 0.1 to 1000.",
			set: func(c *config, text string) (err error) {
				c.rate, err = strconv.ParseFloat(text, 64)
				if err != nil || !(c.rate >= 0.1 && c.rate <= 1000) {
					return fmt.Errorf("%q: want a number from 0.1 to 1000", text)
				}
				return nil
			},
		},
		{
			name: "count", value: "NUMBER",
			usage: "Stop after this many orders. Default: continue until Ctrl-C.",
			set: func(c *config, text string) (err error) {
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
