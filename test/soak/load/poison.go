package load

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// poisonNeighbours are the ordinary rows around one that is poison.
const poisonNeighbours = 1000

// Poison commits, in one recorded transaction, ordinary rows and in their midst one whose body has at least so many
// bytes: more than the broker takes, which closes the channel for it. It may be called again, and beside writers.
func Poison(ctx context.Context, opts WriterOptions, bytes int, record WriterRecorder) error {
	config, err := writerConfig(opts.DatabaseURL)
	if err != nil {
		return err
	}
	// The time makes ids that nobody else has: those of writers count from 1.
	const firstID = 1 << 50
	now := record.Now().Nanoseconds()
	writer := opts.Writers + 1
	plan := newPlanner(opts.Seed^uint64(now), writer, writer+1, 1, opts.Topology)
	t := plan.poisoned(bytes)
	t.id = firstID + now

	w := &Writers{opts: opts}
	defer w.done.Wait()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("write poison: %w", err)
	}
	defer w.close(conn)
	run := &executor{run: opts.Run, writer: writer, table: opts.Table, record: record}
	if _, err := run.execute(ctx, conn, t); err != nil {
		return fmt.Errorf("write poison: %w", err)
	}
	return nil
}

// poisoned draws ordinary rows with one in their midst that is too large. It goes the way of a neighbour, so that it is
// on the same channel.
func (p *planner) poisoned(bytes int) *transaction {
	t := p.begin()
	for range poisonNeighbours {
		p.add(t, history.Plain, false)
	}
	poison := &t.rows[len(t.rows)/2]
	poison.Kind, poison.fill = history.Impossible, bytes
	t.steps = []step{{verb: copyRows, to: len(t.rows)}}
	return t
}
