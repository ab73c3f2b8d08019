package doctor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// How much of the table is read: this many rows from each end and of the retries, and the rows of some blocks between.
const (
	sampleRows   = 5000
	sampleBlocks = 300
	// mostDestinations is how many different destinations are checked.
	mostDestinations = 200
)

// destination is where a row is to go.
type destination struct {
	exchange   string
	named      bool // false: the row names none
	routingKey string
}

// sample is what was seen of the waiting rows.
type sample struct {
	rows  int  // examined; some may count twice
	whole bool // it contains all waiting rows
	// missed is why a part could not be read.
	missed error
	// destinations maps each destination to its number of rows.
	destinations map[destination]int
	// unroutable counts the rows whose last rejection was that, by destination.
	unroutable map[destination]int
}

// sampleSQL: exchange and routing key have no index, so finding the distinct values of all rows would be expensive.
const sampleSQL = `
SELECT exchange, routing_key, split_part(last_error, ':', 1), count(*)
FROM (SELECT exchange, routing_key, left(last_error, 40) AS last_error FROM %TABLE% LIMIT $1) few
GROUP BY 1, 2, 3`

// takeSample reads a bounded number of rows. One end of the table may take too long because of dead rows; the other
// parts are read in any case.
func (s *session) takeSample(ctx context.Context, table outbox.Table, partitioned bool) answer[sample] {
	p := sample{destinations: map[destination]int{}, unroutable: map[destination]int{}}
	from := table.SQL()
	oldest, err := s.count(ctx, &p, from+" ORDER BY id")
	if err == nil && oldest < sampleRows {
		p.whole = true
		return answer[sample]{value: p}
	}
	p.missed = err
	for _, part := range []string{" ORDER BY id DESC", " WHERE available_at IS NOT NULL ORDER BY available_at"} {
		_, err := s.count(ctx, &p, from+part)
		p.missed = cmp.Or(p.missed, err)
	}
	if !partitioned {
		p.missed = cmp.Or(p.missed, s.countBetween(ctx, &p, from))
	}
	if p.rows == 0 {
		return answer[sample]{err: p.missed}
	}
	return answer[sample]{value: p}
}

// countBetween reads some blocks of the table.
func (s *session) countBetween(ctx context.Context, to *sample, from string) error {
	blocks := ask[int64](ctx, s,
		"SELECT to_jsonb(pg_relation_size($1::text::regclass) / current_setting('block_size')::int)", from)
	if blocks.err != nil || blocks.value <= sampleBlocks {
		return blocks.err
	}
	_, err := s.count(ctx, to, from+" TABLESAMPLE SYSTEM (100.0 * $2::float8 / $3::float8)", sampleBlocks, blocks.value)
	return err
}

// count adds the rows of one part of the table.
func (s *session) count(ctx context.Context, to *sample, from string, more ...any) (int, error) {
	a := read(ctx, s, func(tx pgx.Tx) (rows int, err error) {
		// Force the index: the statistics of a queue are always old.
		if _, err := tx.Exec(ctx, "SELECT set_config('enable_seqscan', 'off', true)"); err != nil {
			return 0, err
		}
		var exchange, code *string
		var key string
		var n int
		sql := strings.Replace(sampleSQL, "%TABLE%", from, 1)
		found, _ := tx.Query(ctx, sql, append([]any{sampleRows}, more...)...) // ForEachRow returns its error
		_, err = pgx.ForEachRow(found, []any{&exchange, &key, &code, &n}, func() error {
			to.take(exchange, key, code, n)
			rows += n
			return nil
		})
		return rows, err
	})
	return a.value, a.err
}

func (p *sample) take(exchange *string, key string, code *string, n int) {
	d := destination{routingKey: key}
	if exchange != nil {
		d.exchange, d.named = *exchange, true
	}
	p.rows += n
	p.destinations[d] += n
	if code != nil && *code == string(outbox.ReasonUnroutable) {
		p.unroutable[d] += n
	}
}

// destinations returns where the rows go, with --exchange for rows that name none, the most frequent first.
func (f databaseFacts) destinations(o Options) []destination {
	counts := map[destination]int{}
	for d, n := range f.sample.value.destinations {
		counts[d.resolved(o)] += n
	}
	return slices.SortedFunc(maps.Keys(counts), func(a, b destination) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.exchange, b.exchange),
			cmp.Compare(a.routingKey, b.routingKey))
	})
}

// reply: a direct reply goes to the waiting client at once, past all queues.
func (d destination) reply() bool {
	return d.exchange == "" && strings.HasPrefix(d.routingKey, "amq.rabbitmq.reply-to")
}

// resolved fills in the exchange that the relay would use.
func (d destination) resolved(o Options) destination {
	if !d.named {
		d.exchange, d.named = o.Exchange, true
	}
	return d
}
