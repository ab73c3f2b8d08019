package operator

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtime"
)

// The rows by state, in the order of an index. Heads are the first rows of their keys that wait for a time.
const statesSQL = withLocks + `
SELECT r.state, r.available_at IS NOT NULL, count(*),
       pg_catalog.min(coalesce(r.available_at, CASE WHEN pg_catalog.isfinite(r.created_at) THEN r.created_at END)),
       count(*) FILTER (WHERE r.available_at > statement_timestamp() AND r.ordering_key IS NOT NULL
         AND NOT (` + followsSQL + `))
FROM ({stated}) r
GROUP BY 1, 2`

const countedSQL = `SELECT r.id, r.ordering_key, r.attempts, r.available_at, r.created_at, r.expires_at,
             r.schema_version, r.xmax AS locker FROM {outbox} r {from} LIMIT $1`

// The rows that statesSQL reads: the oldest, those with a time, and this part of the whole table: $2. Neighbors often
// have the same state, so the sample has a few rows of each of many pages: of a thousand or so, because most rows may
// be dead.
const (
	oldestRows  = "ORDER BY r.id"
	dueRows     = "WHERE r.available_at <= (SELECT statement_timestamp()) ORDER BY r.available_at"
	futureRows  = "WHERE r.available_at > (SELECT statement_timestamp()) ORDER BY r.available_at"
	sampledRows = `TABLESAMPLE SYSTEM (least(100, 8e8 / greatest(pg_catalog.pg_relation_size($3::text::regclass), 1)))
      WHERE pg_catalog.random() <
        $2::float8 * (SELECT greatest(pg_catalog.pg_relation_size($3::text::regclass) / 8e6, 1))`
)

// group is a number of rows in one state.
type group struct {
	State State
	// Timed: available_at is set. Earliest is the earliest one, or else the earliest created_at.
	Timed    bool
	N        int64
	Earliest pgtype.Timestamptz
	// Heads counts the first rows of their keys that wait for a time.
	Heads int64
}

func (r *statsReader) statesStatement(from string) string {
	rows := strings.ReplaceAll(countedSQL, "{from}", from)
	return r.fill(statesSQL, "{stated}", waiting(r.known).stated(rows))
}

// groups counts rows by state, and returns how many it read.
func (r *statsReader) groups(
	ctx context.Context, tx querier, from string, args ...any,
) (groups []group, read int64, err error) {
	rows, err := tx.Query(ctx, r.statesStatement(from), append([]any{r.most}, args...)...)
	if err != nil {
		return nil, 0, err
	}
	groups, err = pgx.CollectRows(rows, pgx.RowToStructByPos[group])
	for _, g := range groups {
		read += g.N
	}
	return groups, read, err
}

// states counts the rows of each state. Up to MostCounted rows, one statement counts them all. Beyond, few rows with a
// time are counted by their own index, all others are estimated by a sample, and Waiting is the rest of Depth.
func (r *statsReader) states(ctx context.Context, tx querier, s *QueueStats) error {
	oldest, read, err := r.groups(ctx, tx, oldestRows)
	if err != nil {
		return err
	}
	if counted(read, r.most.Int64).Precision == Exact {
		s.put(oldest, Exact)
		s.Depth = Count{read, Exact}
		return nil
	}
	due, readDue, err := r.groups(ctx, tx, dueRows)
	if err != nil {
		return err
	}
	future, readFuture, err := r.groups(ctx, tx, futureRows)
	if err != nil || s.Depth.Precision == Unknown {
		return err
	}
	part := 0.8 * float64(r.most.Int64) / float64(max(s.Depth.N, r.most.Int64)) // rarely more than the limit
	sampled, readSampled, err := r.groups(ctx, tx, sampledRows, part, r.table.SQL())
	if err != nil {
		return err
	}
	var seen, sample QueueStats
	seen.put(append(append(untimed(oldest), due...), future...), Exact)
	sample.put(sampled, Exact)
	estimate := func(seen, sampled Count) Count {
		if sampled.N < max(leastSampled, readSampled/25) {
			return Count{seen.N, AtLeast}
		}
		return Count{max(seen.N, int64(float64(sampled.N)*float64(s.Depth.N)/float64(readSampled))), Estimate}
	}
	few := counted(readDue, r.most.Int64).Precision == Exact && counted(readFuture, r.most.Int64).Precision == Exact
	s.put(future, Exact) // the next times
	s.OldestAtOnce = seen.OldestAtOnce
	rest := s.Depth.N
	for state, count := range seen.States {
		if timed := state == Due || state == Retrying || state == Scheduled; !timed || !few {
			count = estimate(count, sample.States[state])
		}
		s.States[state] = count
		rest -= count.N
	}
	if s.TimedKeys = seen.TimedKeys; !few {
		s.TimedKeys = estimate(seen.TimedKeys, sample.TimedKeys)
	}
	if atOnce := s.States[AtOnce]; atOnce.Precision == Estimate {
		s.States[AtOnce] = Count{max(rest+atOnce.N, 0), Estimate}
	}
	return nil
}

// leastSampled is from how many sampled rows on a number is an estimate: it is then hardly wrong by a factor of two.
const leastSampled = 40

// untimed returns the groups of rows without a time.
func untimed(groups []group) (those []group) {
	for _, g := range groups {
		if !g.Timed {
			those = append(those, g)
		}
	}
	return those
}

func inEachState(count Count) map[State]Count {
	counts := make(map[State]Count)
	for _, state := range States() {
		if state.Waits() {
			counts[state] = count
		}
	}
	return counts
}

// put adds the groups up.
func (s *QueueStats) put(groups []group, precision Precision) {
	s.States = inEachState(Count{0, precision})
	s.OldestAtOnce, s.NextRetry, s.NextScheduled, s.TimedKeys = nil, nil, nil, Count{0, precision}
	for _, g := range groups {
		s.States[g.State] = Count{s.States[g.State].N + g.N, precision}
		s.TimedKeys.N += g.Heads
		switch g.State {
		case AtOnce:
			s.OldestAtOnce = pgtime.FromColumn(g.Earliest)
		case Retrying:
			s.NextRetry = pgtime.FromColumn(g.Earliest)
		case Scheduled:
			s.NextScheduled = pgtime.FromColumn(g.Earliest)
		}
	}
}
