package load

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// Form is the outbox of a program other than cdc-relay. Its writers insert only ordinary messages, which every program
// can publish: JSON, to a queue, with or without an ordering key.
type Form struct {
	// Insert inserts one message: $1 is its id (a UUID as text), $2 the name of its queue, $3 its ordering key or null,
	// $4 its body.
	Insert string
	// Waiting selects the ids of the messages that the program has not published, as uuid.
	Waiting string
}

// insertInto inserts rows in their order, with one round trip.
func (e *executor) insertInto(ctx context.Context, conn *pgx.Conn, rows []row) error {
	var batch pgx.Batch
	for i := range rows {
		r := &rows[i]
		body, err := jsonBody(aboutRow(e.run, r), r.fill, r.fillSeed)
		if err != nil {
			return fmt.Errorf("make the body of message %s: %w", r.ID, err)
		}
		var key *string
		if r.Key != "" {
			key = &r.Key
		}
		batch.Queue(e.form.Insert, r.ID.String(), r.routingKey, key, string(body))
	}
	return conn.SendBatch(ctx, &batch).Close()
}

func (s State) lookAtForm(ctx context.Context) (d drain, err error) {
	err = s.on(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM (`+s.Form.Waiting+`) w), count(*)
			FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()`, writerName).
			Scan(&d.waiting, &d.writers)
	})
	return d, err
}

func (s State) recordForm(ctx context.Context, conn *pgx.Conn, record StateRecorder) error {
	rows, err := conn.Query(ctx, s.Form.Waiting)
	if err != nil {
		return err
	}
	var id [16]byte
	return forEach(rows, []any{&id}, func() { record.Remaining(history.Row{Message: id}) })
}
