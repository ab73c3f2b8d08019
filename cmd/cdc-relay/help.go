package main

const appDescription = `Applications INSERT a row into the outbox table, in their own transaction. cdc-relay
reads what was committed, publishes it to RabbitMQ with publisher confirms, and deletes
the row once the broker has confirmed it.

FIRST STEPS

  export CDC_RELAY_DATABASE_URL=postgres://user:password@localhost:5432/shop
  export CDC_RELAY_AMQP_URL=amqp://guest:guest@localhost:5672/
  cdc-relay setup     # makes the tables, the publication and the replication slot
  cdc-relay run       # the service; leave it running
  cdc-relay demo      # in another terminal: watch rows arrive in RabbitMQ

  INSERT INTO outbox (routing_key, payload) VALUES ('orders.created', '{"order_id": 42}');`

const configurationHelp = `
A flag with an environment variable next to it can also be given by that, or by its name in
the YAML file that --config names. A flag goes before the environment, the environment
before the file. URLs with a password belong into the environment or the file: other
users of the machine can see flags.`

const exitCodesHelp = `
EXIT CODES

  0    done
  1    failed
  2    wrong flag, environment variable or configuration file
  3    no message has that ID
  130  a second Ctrl-C (143: SIGTERM) cut the end short
`

const appHelp = `cdc-relay {{.Usage}}

  cdc-relay COMMAND [FLAGS]

{{.Description}}

COMMANDS
{{range .VisibleCommands}}{{if ne .Name "help"}}
  {{printf "%-11s" .Name}} {{.Usage}}{{end}}{{end}}

cdc-relay COMMAND --help tells more of each, cdc-relay --version which one this is.
` + exitCodesHelp

const groupHelp = `{{.HelpName}}: {{.Usage}}

  {{.UsageText}}

{{.Description}}

COMMANDS
{{range .VisibleCommands}}{{if ne .Name "help"}}
  {{printf "%-11s" .Name}} {{.Usage}}{{end}}{{end}}
` + exitCodesHelp

const commandHelp = `{{.HelpName}}: {{.Usage}}

  {{.UsageText}}

{{.Description}}
{{if .VisibleFlags}}
FLAGS
{{range .VisibleFlags}}{{if eq (index .Names 0) "help"}}
  --help, -h
      Show this page.
{{else}}
{{.}}{{end}}{{end}}` + configurationHelp + `
{{end}}` + exitCodesHelp
