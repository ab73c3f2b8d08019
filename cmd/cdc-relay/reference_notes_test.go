package main

// note is what the reference adds to the help text of a setting: the range of values, and advice for changing it.
type note struct{ values, advice string }

func notes() map[string]note {
	return map[string]note{
		"database-url":      {"", "Not a [pooler](managed-services.md#connection-poolers)."},
		"database-url-file": {"", ""},
		"amqp-url":          {"", "Needed with `--publisher amqp`. See [AMQP URL](#amqp-url)."},
		"table":             {"at most 51 bytes without the schema", ""},
		"shard":             {"", "See [shards](scaling.md)."},
		"slot":              {"1 to 63 of `a-z`, `0-9`, `_`", "Slots belong to the whole server: use one for each database and table."},
		"publication":       {"1 to 63 bytes", "Use one for each table of a database."},
		"failover-slot":     {"", "A flag of `setup` only. See [failover](operations.md#failover)."},
		"mode":              {"", "With `poll`, messages wait up to about `--poll-interval`."},

		"exchange":            {"at most 255 bytes", ""},
		"header-columns":      {"", "See [columns of your own](contract.md#columns-of-your-own)."},
		"ordering-key-header": {"at most 255 bytes", "For a [consistent hash exchange](consumers.md#order-behind-the-queue)."},
		"max-in-flight":       {"1 to 100000", "[Sizing](sizing.md#rates)."},
		"poll-interval":       {"from `10ms`", "Scheduled messages and retries can be this late."},
		"send-timeout":        {"from `100ms`", "After that, a claimed row may be published again."},
		"shutdown-timeout":    {"from `0s`", "Set it below the time after which the supervisor kills."},

		"max-retries":           {"0 to 1000, or `unlimited`", "A row's [`max_attempts`](contract.md#outbox) replaces it; 0 there is `unlimited` here."},
		"backoff-time":          {"from `0s`", ""},
		"max-backoff":           {"from `0s`", ""},
		"dead-letter-retention": {"", "Needs DELETE on the dead-letter table."},
		"keep-published":        {"", "Doubles the work of Postgres: [history](commands.md#published)."},
		"on-dead-letter":        {"", "See [ordering keys](ordering-keys.md#block-or-continue)."},
		"events-exchange":       {"at most 255 bytes", "See [notices](delivery.md#notices-of-events)."},
		"events":                {"", "`published` doubles RabbitMQ's messages."},
		"log-headers":           {"", "List no header with secrets."},
		"metrics-routing-keys":  {"", "See [routing keys](metrics.md#routing-keys)."},
		"metrics-header":        {"at most 255 bytes", "See [headers](metrics.md#headers)."},

		"http-addr":     {"", "`run` spells it `--listen`. `0.0.0.0:9464` in a container. A second relay on one machine needs another port. [Who can see it](security.md#the-http-address)."},
		"statsd-addr":   {"", "The prefix is `cdc_relay` otherwise. See [DogStatsD](metrics.md#dogstatsd)."},
		"liveness-file": {"", "See [health](operations.md#health)."},
		"log-format":    {"", "`NO_COLOR` turns colors off."},
	}
}
