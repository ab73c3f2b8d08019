package main

const appDescription = `Applications INSERT a row into the outbox table, in their own transaction. cdc-relay
reads what was committed, publishes it to RabbitMQ with publisher confirms, and deletes
the row once RabbitMQ has confirmed it.

FIRST STEPS

  export CDC_RELAY_DATABASE_URL=postgres://user:password@localhost:5432/shop
  export CDC_RELAY_AMQP_URL=amqp://guest:guest@localhost:5672/
  cdc-relay setup               # creates the tables, the publication and the replication slot
  cdc-relay run &               # the service
  cdc-relay demo --count 5      # inserts five orders and shows them arrive

A message of your own needs a queue. RabbitMQ's default exchange delivers it to the queue
with the name of its routing key:

  curl -u guest:guest -X PUT -H 'Content-Type: application/json' \
    -d '{"durable": true}' http://localhost:15672/api/queues/%2F/orders.created
  psql "$CDC_RELAY_DATABASE_URL" -c "INSERT INTO outbox (routing_key, payload)
    VALUES ('orders.created', '{\"order_id\": 42}')"`

const configurationHelp = `
Each flag with an environment variable next to it can also be set by that variable, or by
its name in the YAML file of --config. A flag overrides the environment, and the environment
overrides the file. Put URLs with a password into the environment or a file: other users of
the machine can see flags.`

const exitCodesHelp = `
EXIT CODES

  0    done
  1    failed
  2    wrong flag, environment variable or configuration file
  3    no message has that ID
  130, 143: a second Ctrl-C or SIGTERM interrupted the shutdown
`

const appHelp = `cdc-relay {{.Usage}}

  cdc-relay COMMAND [FLAGS]

{{.Description}}

COMMANDS
{{range .VisibleCommands}}{{if ne .Name "help"}}
  {{printf "%-11s" .Name}} {{.Usage}}{{end}}{{end}}

"cdc-relay COMMAND --help" explains a command, "cdc-relay --version" shows the version.
` + exitCodesHelp

// groupHelp is the help template of a command with subcommands. Few of them have flags of their own.
func groupHelp() string {
	return `{{.HelpName}}: {{.Usage}}

  {{.UsageText}}

{{.Description}}

COMMANDS
{{range .VisibleCommands}}{{if ne .Name "help"}}
  {{printf "%-13s" .Name}} {{.Usage}}{{end}}{{end}}
{{if gt (len .VisibleFlags) 1}}` + flagsHelp("FLAGS", "") + `{{end}}` + exitCodesHelp
}

func flagsHelp(heading, experts string) string {
	return `
` + heading + `
{{range .VisibleFlags}}{{if eq (index .Names 0) "help"}}
  --help, -h
      Show this page.
{{else if not .Advanced}}
{{.}}{{end}}{{end}}` + experts + `{{if gt (len .VisibleFlags) 1}}` + configurationHelp + `
{{end}}`
}

// commandHelp is the help template of a command. If grouped, the advanced flags come last.
func commandHelp(grouped bool) string {
	heading, experts := "FLAGS", ""
	if grouped {
		heading, experts = "COMMON FLAGS", `
ADVANCED FLAGS (the defaults suit most)
{{range .VisibleFlags}}{{if ne (index .Names 0) "help"}}{{if .Advanced}}
{{.}}{{end}}{{end}}{{end}}`
	}
	return `{{.HelpName}}: {{.Usage}}

  {{.UsageText}}

{{.Description}}
{{if .VisibleFlags}}` + flagsHelp(heading, experts) + `{{end}}` + exitCodesHelp
}
