package doctor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// How much of the table is read: this many rows from each end and of the retries, and the rows of some blocks between.
const (
	sampleRows   = 5000
	sampleBlocks = 300
	// mostDestinations is how many different destinations are checked.
	mostDestinations = 200
)

// destination is where a row is to go.
type destination struct{ exchange, routingKey string }

// reply: a direct reply goes to the waiting client at once, past all queues.
func (d destination) reply() bool {
	return d.exchange == "" && strings.HasPrefix(d.routingKey, "amq.rabbitmq.reply-to")
}

// sample is what was seen of the waiting rows.
type sample struct {
	rows  int  // examined; some may count twice
	whole bool // it contains all waiting rows
	// missed is why a part could not be read.
	missed error
	dead   int // dead letters that were examined: the newest
	// Each destination with its number of rows and dead letters, and with that of those whose last rejection was
	// "unroutable", or "nack".
	destinations, unroutable, nacked map[destination]int
}

// sampleSQL: exchange and routing key have no index, so finding the distinct values of all rows would be expensive. For
// a row without an exchange, the error names that of the relay that published it.
const sampleSQL = `
SELECT exchange, routing_key, CASE WHEN exchange IS NULL THEN last_error END, count(*),
       count(*) FILTER (WHERE last_error LIKE 'unroutable:%'), count(*) FILTER (WHERE last_error LIKE 'nack:%')
FROM (SELECT exchange, routing_key, left(last_error, 2000) AS last_error FROM %TABLE% LIMIT $1) few
GROUP BY 1, 2, 3`

// takeSample reads a bounded number of rows. One end of the table may take too long because of dead rows; the other
// parts are read in any case.
func (o Options) takeSample(ctx context.Context, s *session, partitioned bool) answer[sample] {
	p := sample{
		destinations: map[destination]int{}, unroutable: map[destination]int{}, nacked: map[destination]int{},
	}
	// Another check reports why the dead letters cannot be read.
	p.dead = read(ctx, s, func(tx pgx.Tx) (int, error) {
		return p.count(ctx, tx, o, o.Table.DeadLetter().SQL()+" ORDER BY id DESC", nil)
	}).value
	count := func(part string, more ...any) (rows int) {
		a := read(ctx, s, func(tx pgx.Tx) (rows int, err error) {
			return p.count(ctx, tx, o, o.Table.SQL()+part, more)
		})
		p.rows, p.missed = p.rows+a.value, cmp.Or(p.missed, a.err)
		return a.value
	}
	if oldest := count(" ORDER BY id"); p.missed == nil && oldest < sampleRows {
		p.whole = true
		return answer[sample]{value: p}
	}
	count(" ORDER BY id DESC")
	count(" WHERE available_at IS NOT NULL ORDER BY available_at")
	if !partitioned {
		blocks := ask[int64](ctx, s,
			"SELECT to_jsonb(pg_relation_size($1::text::regclass) / current_setting('block_size')::int)", o.Table.SQL())
		if p.missed = cmp.Or(p.missed, blocks.err); blocks.value > sampleBlocks {
			count(" TABLESAMPLE SYSTEM (100.0 * $2::float8 / $3::float8)", sampleBlocks, blocks.value)
		}
	}
	if p.rows == 0 {
		return answer[sample]{err: p.missed}
	}
	return answer[sample]{value: p}
}

// count adds the rows of one part of a table.
func (p *sample) count(ctx context.Context, tx pgx.Tx, o Options, part string, more []any) (rows int, err error) {
	// Force the index: the statistics of a queue are always old.
	if _, err := tx.Exec(ctx, "SELECT set_config('enable_seqscan', 'off', true)"); err != nil {
		return 0, err
	}
	query := strings.Replace(sampleSQL, "%TABLE%", part, 1)
	args := append([]any{sampleRows}, more...)
	found, _ := tx.Query(ctx, query, args...) // ForEachRow returns its error
	var exchange, lastError *string
	var key string
	var n, unroutable, nacked int
	_, err = pgx.ForEachRow(found, []any{&exchange, &key, &lastError, &n, &unroutable, &nacked}, func() error {
		d := destination{o.Exchange, key}
		if name, known := problem.ExchangeOf(exchange, show.ValueOr(lastError, "")); known {
			d.exchange = name
		}
		p.destinations[d] += n
		p.unroutable[d] += unroutable
		p.nacked[d] += nacked
		rows += n
		return nil
	})
	return rows, err
}

// sorted returns the destinations, the most frequent first.
func (p sample) sorted() []destination {
	return slices.SortedFunc(maps.Keys(p.destinations), func(a, b destination) int {
		return cmp.Or(cmp.Compare(p.destinations[b], p.destinations[a]), cmp.Compare(a.exchange, b.exchange),
			cmp.Compare(a.routingKey, b.routingKey))
	})
}
