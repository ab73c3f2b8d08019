package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
)

// relaySettings decide what the relay publishes, and how fast.
func relaySettings() []setting {
	return []setting{
		settings.Shared(settings.Choice("publisher", "amqp",
			"amqp: RabbitMQ. stdout: write one JSON line for each message. "+
				"exec: give these lines to the program after --, and read the outcomes from it.",
			func(c *config) *string { return &c.publisher }, "amqp", "stdout", "exec")),
		settings.Shared(settings.MayBeEmpty(settings.Text("exchange", "NAME", "'', the default exchange",
			"The exchange for rows without one.",
			func(c *config) *string { return &c.exchange }, checkName))),
		settings.Shared(settings.List("header-columns", "NAME,…",
			"Columns to send as headers: of the application, or coalesce_key. Default: none.",
			func(c *config) *[]string { return &c.relay.HeaderColumns })),
		settings.Shared(settings.MayBeEmpty(settings.Text("ordering-key-header", "NAME", "",
			"Send the ordering key as a header of this name. Default: none.",
			func(c *config) *string { return &c.relay.OrderingKeyHeader }))),
		settings.Int("max-in-flight", "2000",
			"Maximum number of messages in memory. After a kill -9, at most this many are published again.",
			func(c *config) *int { return &c.relay.MaxInFlight }),
		settings.Shared(settings.Duration("poll-interval", "1s", "How often to look for due messages.",
			func(c *config) *time.Duration { return &c.relay.PollInterval })),
		settings.Duration("send-timeout", "10s", "How long to wait for RabbitMQ's confirm.",
			func(c *config) *time.Duration { return &c.relay.SendTimeout }),
		settings.Duration("shutdown-timeout", "30s",
			"How long to finish the messages in flight after SIGTERM or Ctrl-C.",
			func(c *config) *time.Duration { return &c.relay.ShutdownTimeout }),
	}
}

// retrySettings decide what happens to messages that the broker rejects, and how long rows stay.
func retrySettings() []setting {
	return []setting{
		retriesSetting(),
		settings.Duration("backoff-time", "120s", "The wait before the first retry; it doubles with each retry.",
			func(c *config) *time.Duration { return &c.relay.BackoffTime }),
		settings.Duration("max-backoff", "1h", "The longest wait before a retry.",
			func(c *config) *time.Duration { return &c.relay.MaxBackoff }),
		settings.Duration("dead-letter-retention", "0s", "The age at which dead letters are deleted; 0s: never. "+
			"With --on-dead-letter block, those with an ordering key stay.",
			func(c *config) *time.Duration { return &c.relay.DeadLetterRetention }),
		settings.Shared(settings.Duration("keep-published", "0s",
			"Keep published messages this long, in a table that setup creates with the same setting; "+
				"0s: delete them. Deletes whole days.",
			func(c *config) *time.Duration { return &c.relay.KeepPublished })),
		settings.Shared(settings.Choice("on-dead-letter", "continue",
			"What an ordering key does after a dead letter: "+
				"continue, or wait until the dead letter is resent or deleted.",
			func(c *config) *relay.OnDeadLetter { return &c.relay.OnDeadLetter }, "continue", "block")),
		settings.Shared(settings.Choice("on-expired", "dead-letter",
			"What to do with a message whose expires_at has passed: make it a dead letter, or delete it.",
			func(c *config) *relay.OnExpired { return &c.relay.OnExpired }, "dead-letter", "drop")),
	}
}

func retriesSetting() setting {
	parse := func(text string) (int, error) {
		if text == show.Unlimited {
			return relay.UnlimitedRetries, nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%q: want 0 to 1000, or %s", text, show.Unlimited)
		}
		return n, nil
	}
	return settings.Shared(settings.Offering(settings.Parsed("max-retries", "NUMBER", "5",
		"How often to retry a message that RabbitMQ rejects, before it becomes a dead letter; "+
			"unlimited: it never does. Outages do not count.",
		func(c *config) *int { return &c.relay.MaxRetries }, parse), []string{show.Unlimited}))
}
