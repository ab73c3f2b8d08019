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
SELECT r.state, r.available_at IS NOT NULL, count(*), pg_catalog.min(r.available_at),
       count(*) FILTER (WHERE r.available_at > statement_timestamp() AND r.ordering_key IS NOT NULL
         AND NOT (` + followsSQL + `))
FROM ({stated}) r
GROUP BY 1, 2`

const countedSQL = `SELECT r.id, r.ordering_key, r.attempts, r.available_at, r.expires_at, r.schema_version,
             r.xmax AS locker FROM {outbox} r {from} LIMIT $1`

// The rows that statesSQL reads: the oldest, those with a time, and some of the whole table: $2 percent of its pages,
// but at most a thousand or so, because most rows may be dead.
const (
	oldestRows  = "ORDER BY r.id"
	dueRows     = "WHERE r.available_at <= (SELECT statement_timestamp()) ORDER BY r.available_at"
	futureRows  = "WHERE r.available_at > (SELECT statement_timestamp()) ORDER BY r.available_at"
	sampledRows = `TABLESAMPLE SYSTEM (least($2::float8,
            8e8 / greatest(pg_catalog.pg_relation_size($3::text::regclass), 1)::float8))`
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
	percent := 80 * float64(r.most.Int64) / float64(max(s.Depth.N, r.most.Int64)) // rarely more than the limit
	sampled, readSampled, err := r.groups(ctx, tx, sampledRows, percent, r.table.SQL())
	if err != nil {
		return err
	}
	for i := range sampled {
		of := float64(s.Depth.N) / float64(readSampled)
		sampled[i].N, sampled[i].Heads = int64(float64(sampled[i].N)*of), int64(float64(sampled[i].Heads)*of)
	}
	var seen, all QueueStats
	seen.put(append(append(untimed(oldest), due...), future...), Exact)
	all.put(sampled, Estimate)
	few := counted(readDue, r.most.Int64).Precision == Exact && counted(readFuture, r.most.Int64).Precision == Exact
	s.put(future, Exact) // the next times
	rest := s.Depth.N
	for state, count := range seen.States {
		switch timed := state == Due || state == Retrying || state == Scheduled; {
		case state == AtOnce:
			continue
		case !timed || !few:
			count = Count{max(count.N, all.States[state].N), Estimate}
		}
		s.States[state] = count
		rest -= count.N
	}
	if s.TimedKeys = seen.TimedKeys; !few {
		s.TimedKeys = Count{max(seen.TimedKeys.N, all.TimedKeys.N), Estimate}
	}
	s.States[AtOnce] = Count{max(rest, 0), Estimate}
	return nil
}

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
	s.NextRetry, s.NextScheduled, s.TimedKeys = nil, nil, Count{0, precision}
	for _, g := range groups {
		s.States[g.State] = Count{s.States[g.State].N + g.N, precision}
		s.TimedKeys.N += g.Heads
		switch g.State {
		case Retrying:
			s.NextRetry = pgtime.FromColumn(g.Earliest)
		case Scheduled:
			s.NextScheduled = pgtime.FromColumn(g.Earliest)
		}
	}
}
