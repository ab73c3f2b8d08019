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

// How much of the table is looked at: two ends of it and the retries, this many rows each,
// and the rows of some blocks between.
const (
	sampleRows   = 5000
	sampleBlocks = 300
	// mostDestinations is how many different ones are looked after.
	mostDestinations = 200
)

// destination is where a row is to go.
type destination struct {
	exchange   string
	named      bool // false: the row names none
	routingKey string
}

// sample is what of the waiting rows was seen.
type sample struct {
	rows  int  // looked at, some of them perhaps twice
	whole bool // these are all that wait
	// missed is why some of what was to be looked at was not.
	missed error
	// destinations and how many of the rows looked at have each.
	destinations map[destination]int
	// refused are the newest codes of the rejections, by destination.
	refused map[destination]map[string]int
}

// sampleSQL: an exchange and a routing key have no index, so the distinct ones of all
// rows cannot be had cheaply; those of some rows can.
const sampleSQL = `
SELECT exchange, routing_key, split_part(last_error, ':', 1), count(*)
FROM (SELECT exchange, routing_key, left(last_error, 40) AS last_error FROM %TABLE% LIMIT $1) few
GROUP BY 1, 2, 3`

// takeSample looks at rows, never at all of a large table. Where dead rows lie before
// them, one end may take too long; the others are looked at all the same.
func (s *session) takeSample(ctx context.Context, table outbox.Table, partitioned bool) answer[sample] {
	p := sample{destinations: map[destination]int{}, refused: map[destination]map[string]int{}}
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

// countBetween takes some blocks of the table.
func (s *session) countBetween(ctx context.Context, to *sample, from string) error {
	var blocks int64
	err := s.fetch(ctx, &blocks, "SELECT to_jsonb(pg_relation_size($1::text::regclass) / current_setting('block_size')::int)", from)
	if err != nil || blocks <= sampleBlocks {
		return err
	}
	_, err = s.count(ctx, to, from+" TABLESAMPLE SYSTEM (100.0 * $2::float8 / $3::float8)", sampleRows, sampleBlocks, blocks)
	return err
}

// count adds the rows of one part of the table.
func (s *session) count(ctx context.Context, to *sample, from string, limit int, more ...any) (rows int, err error) {
	err = s.read(ctx, func(tx pgx.Tx) error {
		// By the index and up to the limit, because the statistics of a queue are always old.
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
		if p.refused[d] == nil {
			p.refused[d] = map[string]int{}
		}
		p.refused[d][*code] += n
	}
}

// destinations are where the rows go, with the relay's exchange for those that name
// none; the most frequent first.
func (f databaseFacts) destinations(o Options) []destination {
	counts := map[destination]int{}
	for d, n := range f.sample.value.destinations {
		counts[d.resolved(o)] += n
	}
	all := slices.Collect(maps.Keys(counts))
	slices.SortFunc(all, func(a, b destination) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.exchange, b.exchange), cmp.Compare(a.routingKey, b.routingKey))
	})
	return all
}

// reply: a direct reply goes to the one who waits for it, past all queues, and at once.
func (d destination) reply() bool {
	return d.exchange == "" && strings.HasPrefix(d.routingKey, "amq.rabbitmq.reply-to")
}

// resolved has the exchange that the relay would take.
func (d destination) resolved(o Options) destination {
	if !d.named {
		d.exchange, d.named = o.Exchange, true
	}
	return d
}
