package operator

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Offered are values that occur among the newest rows of a table, for people who choose a filter.
type Offered struct{ RoutingKeys, Exchanges, Reasons []string }

// mostOffered bounds the values of one column.
const mostOffered = 100

// The newest rows are read, because the others may be many.
const offeredSQL = `
WITH newest AS MATERIALIZED (
  SELECT pg_catalog.left(r.routing_key, 255) AS routing_key, pg_catalog.left(r.exchange, 255) AS exchange,
         {reasons} AS reasons
  FROM {from} r ORDER BY {order} LIMIT 1000
)
(SELECT DISTINCT 'routing key', v.routing_key FROM newest v WHERE v.routing_key <> '' LIMIT $1)
UNION ALL (SELECT DISTINCT 'exchange', v.exchange FROM newest v WHERE v.exchange <> '' LIMIT $1)
UNION ALL (SELECT DISTINCT 'reason', reason FROM newest v CROSS JOIN LATERAL pg_catalog.unnest(v.reasons) reason
  WHERE reason <> '' LIMIT $1)`

func offeredStatement(of kind) string {
	from, order, reasons := "{outbox}", "r.id DESC", "ARRAY["+errorCode("r.last_error")+"]"
	switch of {
	case ofDeadLetters:
		from, order = "{dead}", deadLetters().order
		reasons = "ARRAY[pg_catalog.left(r.failure_reason, 200), " + errorCode("r.last_error") + "]"
	case ofPublished:
		from, order, reasons = "{published}", history().order, "NULL::text[]"
	}
	return strings.NewReplacer("{from}", from, "{order}", order, "{reasons}", reasons).Replace(offeredSQL)
}

// OfferWaiting returns values of the newest rows of the outbox. Its cost does not depend on the number of rows.
func (t *Tables) OfferWaiting(ctx context.Context) (Offered, error) { return t.offer(ctx, ofOutbox) }

// OfferDead is the same for dead letters.
func (t *Tables) OfferDead(ctx context.Context) (Offered, error) { return t.offer(ctx, ofDeadLetters) }

// OfferPublished is the same for the history, which must exist.
func (t *Tables) OfferPublished(ctx context.Context) (Offered, error) {
	return t.offer(ctx, ofPublished)
}

func (t *Tables) offer(ctx context.Context, of kind) (o Offered, err error) {
	err = t.glance(ctx, func(ctx context.Context, tx querier) error {
		rows, err := tx.Query(ctx, t.fill(offeredStatement(of)), mostOffered)
		if err != nil {
			return err
		}
		var column, value string
		_, err = pgx.ForEachRow(rows, []any{&column, &value}, func() error {
			switch column {
			case "routing key":
				o.RoutingKeys = append(o.RoutingKeys, value)
			case "exchange":
				o.Exchanges = append(o.Exchanges, value)
			default:
				o.Reasons = append(o.Reasons, value)
			}
			return nil
		})
		return err
	})
	for _, values := range [][]string{o.RoutingKeys, o.Exchanges, o.Reasons} {
		slices.Sort(values)
	}
	return o, t.reading(ctx, "read values of", err)
}
