package load

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// remaining collects what a look at the end finds.
type remaining map[[16]byte]bool

func (r remaining) Remaining(row history.Row) { r[row.Message] = true }
func (remaining) Kept(int64)                  {}

// A table of another shape gets the same transactions, with messages that every program can publish, and in order.
func TestAFormTakesTheRowsOfItsWriters(t *testing.T) {
	state, conn := database(t)
	const table = `CREATE TABLE other (place bigint GENERATED ALWAYS AS IDENTITY, id uuid NOT NULL, queue text, key text, body text)`
	if _, err := conn.Exec(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	state.Form = &Form{
		Insert:  `INSERT INTO other (id, queue, key, body) VALUES ($1::text::uuid, $2, $3, $4)`,
		Waiting: `SELECT id FROM other`,
	}
	l, opts := newLedger(), options(state)
	run := &executor{run: state.Run, table: state.Table, form: state.Form, record: l}
	plan := newPlanner(opts.Seed, 0, 1, 8, opts.Topology)
	plan.ordinary = true
	writer, err := pgx.Connect(t.Context(), state.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close(context.Background()) }()
	want := make(remaining)
	for range 200 {
		x := plan.next()
		outcome, err := run.execute(t.Context(), writer, x)
		if err != nil {
			t.Fatalf("transaction %d: %v", x.id, err)
		}
		for i := range x.rows {
			if x.rows[i].Kind != history.Plain {
				t.Errorf("a message is %s", x.rows[i].Kind)
			}
			if outcome == history.Committed && !x.rows[i].Discarded {
				want[x.rows[i].ID] = true
			}
		}
	}
	got := make(remaining)
	if err := state.Record(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	for id := range want {
		if !got[id] {
			t.Errorf("message %x was committed, and does not wait", id)
		}
	}
	drain, err := state.look(t.Context())
	if err != nil || len(want) == 0 || len(got) != len(want) || drain.Waiting != len(want) || drain.Writers != 0 {
		t.Errorf("%d messages committed, %d found, %+v, %v", len(want), len(got), drain, err)
	}
	var wrong int
	err = conn.QueryRow(t.Context(), `SELECT count(*) FROM (
		SELECT seq < lag(seq) OVER (PARTITION BY key ORDER BY place) AS back
		FROM (SELECT place, key, substring(body FROM '"seq":(\d+)')::int AS seq FROM other WHERE key IS NOT NULL) p) o WHERE back`).Scan(&wrong)
	if err != nil || wrong != 0 {
		t.Errorf("%d rows have a smaller place in their key than the row before, %v", wrong, err)
	}
}

// The headers of another program are its own affair; the address and the body are not.
func TestOnlyTheBodyIsCompared(t *testing.T) {
	for want, change := range map[bool]func(*amqp.Delivery){
		true:  func(d *amqp.Delivery) { d.Headers, d.ContentType, d.Priority = amqp.Table{"x": "y"}, "", 0 },
		false: func(d *amqp.Delivery) { d.RoutingKey = "elsewhere" },
	} {
		d := arrived(t, history.Plain)
		change(&d)
		if got := inspect(&d, "q", true); (got.Damaged == "") != want {
			t.Errorf("undamaged: want %t, got %q", want, got.Damaged)
		}
	}
}
