package operator

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
)

// Behind is Blocked in the counts of Stats.
const Behind State = "behind"

// followsSQL is the condition for a row r with an older row of its key, behindDeadSQL for one with a dead letter of it.
const (
	followsSQL = `r.ordering_key IS NOT NULL AND EXISTS (
             SELECT 1 FROM {outbox} e
             WHERE e.ordering_key BETWEEN r.ordering_key AND r.ordering_key AND e.id < r.id OFFSET 0)`
	behindDeadSQL = `r.ordering_key IS NOT NULL AND EXISTS (
             SELECT 1 FROM {dead} d WHERE d.ordering_key = r.ordering_key OFFSET 0)`
)

// byState returns where the number of each state is.
func (s *QueueStats) byState() map[State]*Count {
	return map[State]*Count{
		AtOnce:       &s.Waiting,
		Behind:       &s.Behind,
		Due:          &s.Due,
		Retrying:     &s.Retrying,
		Scheduled:    &s.Scheduled,
		Unconfirmed:  &s.Unconfirmed,
		Locked:       &s.Locked,
		Expired:      &s.Expired,
		NewerVersion: &s.NewerVersion,
	}
}

// The rows by state, in the order of an index. Heads are the first rows of their keys that wait for a time.
const statesSQL = withLocks + `
SELECT CASE WHEN r.is_behind AND r.state IN ('waiting', 'due') THEN 'behind' ELSE r.state END,
       r.available_at IS NOT NULL,
       count(*), pg_catalog.min(r.available_at),
       count(*) FILTER (WHERE r.ordering_key IS NOT NULL AND NOT r.follows AND r.available_at > statement_timestamp())
FROM (
  SELECT r.*, {state} AS state, r.follows OR {blocked} AS is_behind FROM (
    SELECT r.*, ` + lockerSQL + ` AS locked_by,
           ` + followsSQL + ` AS follows
    FROM (SELECT r.id, r.ordering_key, r.attempts, r.available_at, r.expires_at, r.possible_duplicate,
                 r.schema_version, r.xmax AS locker
          FROM {outbox} r WHERE {from} ORDER BY {order} LIMIT $1) r) r) r
GROUP BY 1, 2`

// The rows that statesSQL reads: the oldest, and those with a time.
const (
	allRows    = "true"
	dueRows    = "r.available_at <= (SELECT statement_timestamp())"
	futureRows = "r.available_at > (SELECT statement_timestamp())"
)

// group is a number of rows in one state.
type group struct {
	State State
	// Timed: available_at is set. Earliest is the earliest one.
	Timed    bool
	N        int64
	Earliest pgtype.Timestamptz
	// Heads counts the first rows of their keys that wait for a time.
	Heads int64
}

func (r *statsReader) statesStatement(from string) string {
	order, blocked := "r.id", "false"
	if from != allRows {
		order = "r.available_at"
	}
	if r.block {
		blocked = behindDeadSQL
	}
	return r.fill(statesSQL, "{state}", stateBy("r.locked_by"), "{blocked}", blocked, "{from}", from, "{order}", order)
}

// groups counts rows by state, and reports whether it read all of them.
func (r *statsReader) groups(ctx context.Context, tx querier, from string) (groups []group, all bool, err error) {
	rows, err := tx.Query(ctx, r.statesStatement(from), r.most)
	if err != nil {
		return nil, false, err
	}
	groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[group])
	read := int64(0)
	for _, g := range groups {
		read += g.N
	}
	return groups, !r.most.Valid || read < r.most.Int64, err
}

// states counts the rows of each state. Up to MostCounted rows, one statement counts them all. Beyond, the rows with a
// time are counted by their own index, those without one among the oldest rows, and Waiting is the rest of Depth.
func (r *statsReader) states(ctx context.Context, tx querier, s *QueueStats) error {
	groups, all, err := r.groups(ctx, tx, allRows)
	if err != nil {
		return err
	}
	precision := map[State]Precision{}
	for state := range s.byState() {
		precision[state] = precisionOf(all)
	}
	if !all {
		due, allDue, err := r.groups(ctx, tx, dueRows)
		if err != nil {
			return err
		}
		future, allFuture, err := r.groups(ctx, tx, futureRows)
		if err != nil {
			return err
		}
		precision[Due] = precisionOf(allDue)
		for _, state := range []State{Retrying, Scheduled, Unconfirmed} {
			precision[state] = precisionOf(allFuture)
		}
		var known []group
		for _, g := range groups {
			if !g.Timed && g.State != AtOnce {
				known = append(known, g)
			}
		}
		groups = append(append(known, due...), future...)
	}
	r.put(s, groups, precision)
	switch {
	case all:
		s.Depth = Count{Precision: Exact}
		for _, count := range s.byState() {
			s.Depth.N += count.N
		}
	case s.Depth.Precision == Unknown:
		s.Waiting = Count{Precision: Unknown}
	default:
		rest := s.Depth.N
		for _, count := range s.byState() {
			rest -= count.N
		}
		s.Waiting = Count{max(rest, 0), Estimate}
	}
	return nil
}

// put adds the groups up.
func (r *statsReader) put(s *QueueStats, groups []group, precision map[State]Precision) {
	for state, count := range s.byState() {
		*count = Count{0, precision[state]}
	}
	s.NextRetry, s.NextScheduled = nil, nil
	s.TimedKeys = Count{0, precision[Scheduled]}
	counts := s.byState()
	for _, g := range groups {
		counts[g.State].N += g.N
		s.TimedKeys.N += g.Heads
		switch g.State {
		case Retrying:
			s.NextRetry = pgtime.FromColumn(g.Earliest)
		case Scheduled:
			s.NextScheduled = pgtime.FromColumn(g.Earliest)
		}
	}
	for _, count := range counts {
		if count.Precision != Exact {
			count.N = min(count.N, r.most.Int64-1)
		}
	}
}
