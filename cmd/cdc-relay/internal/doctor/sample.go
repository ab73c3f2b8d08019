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
	// rejected counts the last rejection codes, by destination.
	rejected map[destination]map[string]int
}

// sampleSQL: exchange and routing key have no index, so finding the distinct values of all rows would be expensive.
const sampleSQL = `
SELECT exchange, routing_key, split_part(last_error, ':', 1), count(*)
FROM (SELECT exchange, routing_key, left(last_error, 40) AS last_error FROM %TABLE% LIMIT $1) few
GROUP BY 1, 2, 3`

// takeSample reads a bounded number of rows. One end of the table may take too long because of dead rows; the other
// parts are read in any case.
func (s *session) takeSample(ctx context.Context, table outbox.Table, partitioned bool) answer[sample] {
	p := sample{destinations: map[destination]int{}, rejected: map[destination]map[string]int{}}
	from := table.SQL()
	oldest, err := s.count(ctx, &p, from+" ORDER BY id", sampleRows)
	if err == nil && oldest < sampleRows {
		p.whole = true
		return answer[sample]{value: p}
	}
	p.missed = err
	for _, part := range []string{" ORDER BY id DESC", " WHERE available_at IS NOT NULL ORDER BY available_at"} {
		_, err := s.count(ctx, &p, from+part, sampleRows)
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
	var blocks int64
	err := s.fetch(ctx, &blocks,
		"SELECT to_jsonb(pg_relation_size($1::text::regclass) / current_setting('block_size')::int)", from)
	if err != nil || blocks <= sampleBlocks {
		return err
	}
	_, err = s.count(ctx, to,
		from+" TABLESAMPLE SYSTEM (100.0 * $2::float8 / $3::float8)", sampleRows, sampleBlocks, blocks)
	return err
}

// count adds the rows of one part of the table.
func (s *session) count(ctx context.Context, to *sample, from string, limit int, more ...any) (rows int, err error) {
	err = s.read(ctx, func(tx pgx.Tx) error {
		// Force the index: the statistics of a queue are always old.
		if _, err := tx.Exec(ctx, "SELECT set_config('enable_seqscan', 'off', true)"); err != nil {
			return err
		}
		found, err := tx.Query(ctx, strings.Replace(sampleSQL, "%TABLE%", from, 1), append([]any{limit}, more...)...)
		if err != nil {
			return err
		}
		var exchange, code *string
		var key string
		var n int
		_, err = pgx.ForEachRow(found, []any{&exchange, &key, &code, &n}, func() error {
			to.take(exchange, key, code, n)
			rows += n
			return nil
		})
		return err
	})
	return rows, err
}

func (p *sample) take(exchange *string, key string, code *string, n int) {
	d := destination{routingKey: key}
	if exchange != nil {
		d.exchange, d.named = *exchange, true
	}
	p.rows += n
	p.destinations[d] += n
	if code != nil {
		if p.rejected[d] == nil {
			p.rejected[d] = map[string]int{}
		}
		p.rejected[d][*code] += n
	}
}

// destinations returns where the rows go, with --exchange for rows that name none, the most frequent first.
func (f databaseFacts) destinations(o Options) []destination {
	counts := map[destination]int{}
	for d, n := range f.sample.value.destinations {
		counts[d.resolved(o)] += n
	}
	all := slices.Collect(maps.Keys(counts))
	slices.SortFunc(all, func(a, b destination) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.exchange, b.exchange),
			cmp.Compare(a.routingKey, b.routingKey))
	})
	return all
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
