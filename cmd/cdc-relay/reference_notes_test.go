package main

// note is what the reference says of a setting beyond its help page: the values that it
// takes, and what to know before it is changed.
type note struct{ values, advice string }

func notes() map[string]note {
	const aFile = "a file"
	return map[string]note{
		"config":            {aFile, "Not a key of the file itself."},
		"database-url":      {"a URL, or key=value pairs", "Connect to Postgres itself, not to a [pooler](poolers.md)."},
		"database-url-file": {aFile, "Trailing line ends are ignored. Setting both is an error."},
		"amqp-url":          {"`amqp://…` or `amqps://…`", "Needed unless `--publisher stdout`. See [AMQP URL](#amqp-url)."},
		"amqp-url-file":     {aFile, "Like `--database-url-file`."},
		"amqp-ca-file":      {aFile, "Read at each connection, like the next two."},
		"amqp-cert-file":    {aFile, "With `--amqp-key-file`."},
		"amqp-key-file":     {aFile, ""},
		"table":             {"a name as SQL writes it; at most 51 bytes without the schema", ""},
		"shard":             {"`0/4` to `3/4` for four; at most 64", "See [scaling.md](scaling.md)."},
		"shards":            {"1 to 64", ""},
		"slot":              {"1 to 63 of `a-z`, `0-9`, `_`", "Slots belong to the whole server: use one for each database and table."},
		"publication":       {"1 to 63 bytes", "Use one for each table of a database."},
		"mode":              {"", "With `poll`, messages leave within about `--poll-interval`."},

		"publisher":           {"", "The rows are deleted."},
		"exchange":            {"at most 255 bytes", ""},
		"header-columns":      {"names", "See [columns of your own](contract.md#columns-of-your-own)."},
		"ordering-key-header": {"at most 255 bytes", "For a [consistent hash exchange](consumers.md)."},
		"batch-size":          {"1 to 10000", ""},
		"max-in-flight":       {"1 to 100000", "Lower: fewer duplicates after a kill, less memory. Higher: more throughput to a distant broker."},
		"poll-interval":       {"from `10ms`", "A scheduled message or a retry may leave this much late."},
		"send-timeout":        {"from `100ms`", "A claimed row with a late confirm waits this long before another relay may take it."},
		"shutdown-timeout":    {"from `0s`", "Set it below the time after which the supervisor kills."},

		"max-retries":           {"0 to 1000", ""},
		"backoff-time":          {"from `0s`", ""},
		"max-backoff":           {"from `0s`", ""},
		"stale-timeout":         {"from `1s`", ""},
		"outage-cooldown":       {"from `100ms`", "A new connection ends the pause."},
		"dead-letter-retention": {"from `0s`", "`720h` is thirty days. The relay's role needs DELETE on the dead-letter table."},
		"keep-published":        {"from `0s`", "Doubles the work of Postgres: [history](commands.md#published)."},
		"on-dead-letter":        {"", "Use `block` if a key must never skip a message."},
		"on-expired":            {"", ""},
		"events-exchange":       {"at most 255 bytes", "See [notices](contract.md#notices-of-events)."},
		"events":                {"`published`, `rejected`, `dead_lettered`, separated by commas", "`published` doubles the messages that the broker takes."},
		"log-headers":           {"names, separated by commas", "Values may stand in the log for long: name no header with secrets."},
		"metrics-routing-keys":  {"patterns as in a binding of a topic exchange, separated by commas", "See [routing keys](metrics.md#routing-keys)."},

		"http-addr":     {"host:port, or `''` for none", "`0.0.0.0:9464` in a container; a second relay on one machine needs another port. [Who can see it](security.md#the-http-address)."},
		"statsd-addr":   {"host:port, or `unix:///path`", "See [DogStatsD](metrics.md#dogstatsd). `drain` sends once, at its end."},
		"statsd-prefix": {"letters, digits, dots and underscores", "`''` for none."},
		"statsd-tags":   {"`name:value`, separated by commas", ""},
		"liveness-file": {aFile, "For probes that look at a file's age."},
		"log-level":     {"", ""},
		"log-format":    {"", "`NO_COLOR` turns colors off."},

		"format":         {"", ""},
		"rate":           {"0.1 to 1000", ""},
		"count":          {"from 1", ""},
		"top":            {"from 0", ""},
		"listen":         {"host:port", ""},
		"token-file":     {"a file", "At least 16 characters: `openssl rand -hex 32`."},
		"login-header":   {"the name of a header", "Only the proxy may reach the console then: who reaches it can set the header."},
		"allow-changes":  {"", ""},
		"interval":       {"from `100ms`", ""},
		"limit":          {"from 1", ""},
		"app-role":       {"a role", ""},
		"from":           {"a name as SQL writes it", ""},
		"map":            {"`column=column`, separated by commas", "See [adopt](adopt.md#other-tables)."},
		"waiting":        {"`all`, `none` or an SQL condition", ""},
		"management-url": {"`http://…` or `https://…`", "The usual port is 15672, and 15671 with `amqps`."},
	}
}
