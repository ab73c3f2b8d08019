package relay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay/metrics"
)

// Mode says where a relay takes its messages from.
type Mode string

const (
	// ModeAuto streams, and sweeps while the stream is down.
	ModeAuto Mode = "auto"
	// ModePoll only sweeps, for databases without logical replication.
	ModePoll Mode = "poll"
)

// OnDeadLetter says how an ordering key continues after one of its messages was dead-lettered.
type OnDeadLetter string

const (
	// OnDeadLetterContinue: the key continues with its next message.
	OnDeadLetterContinue OnDeadLetter = "continue"
	// OnDeadLetterBlock: the key waits until the dead letter is requeued or purged.
	OnDeadLetterBlock OnDeadLetter = "block"
)

// OnExpired says what happens to a message whose expires_at has passed before it was published.
type OnExpired string

const (
	// OnExpiredDeadLetter: the message becomes a dead letter.
	OnExpiredDeadLetter OnExpired = "dead-letter"
	// OnExpiredDrop: the row is deleted and counted.
	OnExpiredDrop OnExpired = "drop"
)

// UnlimitedRetries (-1) is the MaxRetries with which no rejection makes a dead letter.
const UnlimitedRetries = core.UnlimitedRetries

// TakeOver is how long it takes until another relay leads, at most: its leader may be frozen.
const TakeOver = 6 * time.Second

// Tracer receives the result of each attempt to publish a message. The publisher's goroutines call it concurrently. It
// must not block, and must not keep or change the message.
type Tracer interface {
	Delivered(outbox.Result)
}

// Config is the configuration of one relay. DefaultConfig has the documented defaults; Validate checks it.
type Config struct {
	// DatabaseURL is a libpq URL or key=value string. Its role needs REPLICATION (not for ModePoll), and SELECT, UPDATE
	// and DELETE on the outbox.
	DatabaseURL string
	// DatabaseURLFile is a file with the DatabaseURL, in its place. It is read again for each connection, so a password
	// may change.
	DatabaseURLFile string
	Table           outbox.Table
	// TableOwner is a role that may own the tables, besides the relay's own, the owner of the database and superusers.
	TableOwner  string
	Slot        string
	Publication string
	// Shard is the part of the rows that this relay takes; the zero Shard takes all rows. The names of slot and
	// publication then end with the shard.
	Shard outbox.Shard
	// FailoverSlot: the slot is created as a failover slot, which Postgres 17 and later copies to standbys.
	FailoverSlot bool
	Mode         Mode
	// Version and Settings are what the relay tells other programs in its row of the table of relays. They must contain
	// no secret.
	Version  string
	Settings map[string]string
	// Prepare is called before the tables are checked, and again until it succeeds. A *problem.Problem ends Run. nil:
	// nothing is prepared.
	Prepare func(ctx context.Context) error
	// Hooks are called for the results of messages. All are optional.
	Hooks Hooks
	// MetricsRoutingKeys are patterns like those of a topic exchange. Message counters get a label routing_key with the
	// matching keys, at most 99. All other keys are "other". Empty: no label.
	MetricsRoutingKeys []string
	// MetricsHeader is the name of a header in the column headers. Message counters get a label with its values, at
	// most 98; all others are "other". metrics.By has the details. Empty: no label.
	MetricsHeader string
	// LogHeaders names message headers that log lines about a message show.
	LogHeaders []string
	// Tracer receives each attempt to publish; nil: none. Package tracing has one.
	Tracer Tracer

	// BatchSize is the most rows in a sweep's page or a settle statement (1 to 10,000).
	BatchSize int
	// MaxInFlight is the most messages in memory (1 to 100,000).
	MaxInFlight int
	// PollInterval is how often a relay sweeps for due rows (10 ms or more). Without a stream, all rows wait for a
	// sweep.
	PollInterval time.Duration
	// SendTimeout is how long the publisher waits for a confirm (100 ms or more).
	SendTimeout time.Duration
	// ShutdownTimeout bounds how long Run finishes messages in flight after its context was cancelled.
	ShutdownTimeout time.Duration

	// MaxRetries is how many rejections are retried (0 to 1000); the next one makes a dead letter. UnlimitedRetries:
	// all of them are. A message with max_attempts has its own limit.
	MaxRetries int
	// BackoffTime is the wait after the first rejection. It doubles with each attempt, up to MaxBackoff.
	BackoffTime time.Duration
	MaxBackoff  time.Duration
	// LateRetries: the publisher may set later times of retries than MaxBackoff, with RetryIn of its results.
	LateRetries  bool
	OnDeadLetter OnDeadLetter
	OnExpired    OnExpired
	// HeaderColumns are application columns that are sent as headers with their names, except null values.
	HeaderColumns []string
	// OrderingKeyHeader is the header with the ordering key; empty: none.
	OrderingKeyHeader string
	// DeadLetterRetention is the age at which dead letters are deleted; 0: never. OnDeadLetterBlock keeps dead letters
	// with an ordering key.
	DeadLetterRetention time.Duration
	// KeepPublished is how long the history keeps published messages; 0: no history.
	KeepPublished time.Duration
}

// DefaultConfig returns the defaults of the flags. The caller must set DatabaseURL.
func DefaultConfig() Config {
	return Config{
		Table:           outbox.Table{Schema: "public", Name: "outbox"},
		Slot:            "cdc_relay",
		Publication:     "cdc_relay",
		Mode:            ModeAuto,
		BatchSize:       1000,
		MaxInFlight:     2000,
		PollInterval:    time.Second,
		SendTimeout:     10 * time.Second,
		ShutdownTimeout: 30 * time.Second,
		MaxRetries:      5,
		BackoffTime:     2 * time.Minute,
		MaxBackoff:      time.Hour,
		OnDeadLetter:    OnDeadLetterContinue,
		OnExpired:       OnExpiredDeadLetter,
	}
}

// Names returns the slot and the publication, with the names for the shard.
func (c Config) Names() provision.Names {
	names := provision.NamesOf(c.Table, c.Publication, c.Slot, c.Shard)
	names.Failover = c.FailoverSlot
	return names
}

// slotName matches the names that Postgres accepts (ReplicationSlotValidateName).
var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// AddOrderingKey gives a message the header OrderingKeyHeader, if it is set and the message has a key.
func (c *Config) AddOrderingKey(m *outbox.Message) {
	if c.OrderingKeyHeader != "" && m.OrderingKey != nil {
		m.Extra = append(m.Extra, outbox.Header{Name: c.OrderingKeyHeader, Value: *m.OrderingKey})
	}
}

// Validate returns all mistakes at once, each beginning with its field, or nil.
func (c Config) Validate() error {
	var errs []error
	wrong := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	wrong(c.DatabaseURL == "" && c.DatabaseURLFile == "", "DatabaseURL is not set")
	wrong(c.Table.Name == "", "Table is empty")
	wrong(!slotName.MatchString(c.Slot), "Slot %q: a slot name has 1 to 63 characters of a-z, 0-9 and _", c.Slot)
	wrong(c.Publication == "" || len(c.Publication) > 63, "Publication %q: want 1 to 63 bytes", c.Publication)
	names := c.Names()
	wrong(len(names.Slot) > 63 && len(c.Slot) <= 63, "Slot %q: %s is longer than 63 characters", c.Slot, names.Slot)
	wrong(len(names.Publication) > 63 && len(c.Publication) <= 63,
		"Publication %q: %s is longer than 63 bytes", c.Publication, names.Publication)
	wrong(c.Mode != ModeAuto && c.Mode != ModePoll, "Mode %q: want auto or poll", c.Mode)
	wrong(c.OnDeadLetter != OnDeadLetterContinue && c.OnDeadLetter != OnDeadLetterBlock,
		"OnDeadLetter %q: want continue or block", c.OnDeadLetter)
	wrong(c.OnExpired != OnExpiredDeadLetter && c.OnExpired != OnExpiredDrop,
		"OnExpired %q: want dead-letter or drop", c.OnExpired)
	wrong(c.BatchSize < 1 || c.BatchSize > 10_000, "BatchSize %d: want 1 to 10000", c.BatchSize)
	wrong(c.MaxInFlight < 1 || c.MaxInFlight > 100_000, "MaxInFlight %d: want 1 to 100000", c.MaxInFlight)
	wrong((c.MaxRetries < 0 || c.MaxRetries > 1000) && c.MaxRetries != UnlimitedRetries,
		"MaxRetries %d: want 0 to 1000, or unlimited", c.MaxRetries)
	for _, name := range c.HeaderColumns {
		wrong(name == "" || name == outbox.PossibleDuplicateHeader,
			"HeaderColumns %q: want names of columns, separated by commas", strings.Join(c.HeaderColumns, ","))
		wrong(schema.IsOwn(name) && name != "coalesce_key",
			"HeaderColumns: %s is a column of the relay; want columns of the application", name)
	}
	wrong(len(c.OrderingKeyHeader) > 255 || c.OrderingKeyHeader == outbox.PossibleDuplicateHeader,
		"OrderingKeyHeader %q: want at most 255 bytes, and not %s",
		c.OrderingKeyHeader, outbox.PossibleDuplicateHeader)
	for _, d := range []struct {
		field string
		value time.Duration
		least time.Duration
	}{
		{"PollInterval", c.PollInterval, 10 * time.Millisecond},
		{"SendTimeout", c.SendTimeout, 100 * time.Millisecond},
		{"ShutdownTimeout", c.ShutdownTimeout, 0},
		{"BackoffTime", c.BackoffTime, 0},
		{"MaxBackoff", c.MaxBackoff, 0},
		{"DeadLetterRetention", c.DeadLetterRetention, 0},
		{"KeepPublished", c.KeepPublished, 0},
	} {
		wrong(d.value < d.least, "%s %s: want at least %s", d.field, d.value, d.least)
	}
	if err := c.metricsBy().Check(); err != nil {
		errs = append(errs, err)
	}
	wrong(c.MetricsHeader != "" && (c.MetricsHeader == c.OrderingKeyHeader ||
		slices.Contains(c.HeaderColumns, c.MetricsHeader)),
		"MetricsHeader %q: another column is the source of this header; want one of the column headers",
		c.MetricsHeader)
	return errors.Join(errs...)
}

func (c *Config) metricsBy() metrics.By {
	return metrics.By{RoutingKeys: c.MetricsRoutingKeys, Header: c.MetricsHeader}
}

// latestRetry returns the longest wait before a retry.
func (c *Config) latestRetry() time.Duration {
	if c.LateRetries {
		return math.MaxInt64
	}
	return max(c.MaxBackoff, c.SendTimeout) + time.Minute
}
