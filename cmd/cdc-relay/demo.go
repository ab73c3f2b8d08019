package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/console"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/demo"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func (p *process) demoCommand() *cli.Command {
	return &cli.Command{
		Name:      "demo",
		Usage:     "insert example orders and show them arrive",
		UsageText: "cdc-relay demo [FLAGS]",
		Description: `Inserts orders into the outbox with plain SQL, consumes them from RabbitMQ, and prints a
line for each arrival. "cdc-relay run" must run with the same servers. The demo creates a
queue, which is deleted at the end, and uses no other queue. In RabbitMQ its user needs the
permissions configure and read for '^amq\.gen-'; the relay's user needs write for amq.default.

--console also serves the console (cdc-relay console --help) on this machine, until the demo
ends. The demo prints its address first.

The time shown runs from just before COMMIT to the arrival at the consumer, so it includes
the commit. p50 and p99 are those of the last 10,000 arrivals.

` + ownMessage + `

EXAMPLES

  cdc-relay demo
  cdc-relay demo --count 20 --rate 50
  cdc-relay demo --console                    # and watch http://127.0.0.1:9465/ meanwhile`,
		Flags: describe(flags("database-url", "amqp-url", "table", "owner", "rate", "count",
			"console", "console-listen", "slot", "publication", "config"), usages{
			"console-listen": "With --console: serve it at this address, which must be on loopback.",
			"slot":           "With --console: the replication slot of the relay.",
			"publication":    "With --console: the publication of the relay.",
		}),
		Action: p.demo,
	}
}

// ownMessage is what follows the demo.
const ownMessage = `A message of your own needs a queue. RabbitMQ's default exchange delivers it to the queue
with the name of its routing key:

  curl -u guest:guest -X PUT -H 'Content-Type: application/json' \
    -d '{"durable": true}' http://localhost:15672/api/queues/%2F/orders.created
  psql "$CDC_RELAY_DATABASE_URL" -c "INSERT INTO outbox (routing_key, payload)
    VALUES ('orders.created', '{\"order_id\": 42}')"`

func (p *process) demo(c *cli.Context) error {
	cfg, err := p.resolve(c)
	if err != nil {
		return err
	}
	if err := errors.Join(cfg.validate(), cfg.needAMQP()); err != nil {
		return err
	}
	if cfg.console.besideDemo && !console.IsLoopback(cfg.console.listen) {
		return usagef("--console-listen %s: with demo --console, want an address on loopback", cfg.console.listen)
	}
	conn, err := connect(c.Context, cfg.database(), "demo", pgdial.CatalogFirst)
	if err != nil {
		return err
	}
	defer closeConn(c.Context, conn)
	table := cfg.relay.Table
	state, err := migrations.Status(c.Context, conn, table, cfg.relay.TableOwner)
	if err != nil {
		return cfg.ownerHint(err, conn)
	}
	if len(state.Pending) > 0 {
		return failure.WithHint(
			fmt.Errorf("table %s is missing or not up to date", table), problem.Command(table, "setup"))
	}
	run := func(ctx context.Context) error {
		return cfg.ownerHint(demo.Run(ctx, demo.Config{
			Conn: conn, Database: where(conn.Config()), Table: table, RabbitMQ: cfg.rabbitmq,
			Rate: cfg.rate, Count: cfg.count, Out: p.terminal.Out,
		}), conn)
	}
	if !cfg.console.besideDemo {
		return run(c.Context)
	}
	opened, err := p.openConsole(c.Context, cfg, "demo --console")
	if err != nil {
		return err
	}
	fmt.Fprintf(p.terminal.Out, "console: %s\n\n", opened.url)
	actors, running := errgroup.WithContext(c.Context)
	serving, stop := context.WithCancel(running)
	defer stop()
	actors.Go(func() error { return opened.serve(serving) })
	actors.Go(func() error {
		defer stop()
		return run(running)
	})
	return actors.Wait()
}
