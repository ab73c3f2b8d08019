package load

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// poisonNeighbours is the number of ordinary rows around a poison row.
const poisonNeighbours = 1000

// Poison commits, in one recorded transaction, ordinary rows and among them one with a body of at least this size: more
// than the broker accepts, so it closes the channel. It can be called repeatedly, also while writers run.
func Poison(ctx context.Context, opts WriterOptions, bytes int, record WriterRecorder) error {
	config, err := writerConfig(opts.DatabaseURL)
	if err != nil {
		return err
	}
	// The time makes the ids unique: those of writers count from 1.
	const firstID = 1 << 50
	now := record.Now().Nanoseconds()
	writer := opts.Writers + 1
	plan := newPlanner(opts.Seed^uint64(now), writer, writer+1, opts.Topology)
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

// poisoned draws ordinary rows with one too large row among them. That has the destination of a neighbour, so that both
// use the same channel.
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
