package relay

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/outboxtest"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// slowTable is the outbox and a relay that does not run. The trigger stands for the time that many deletes take.
func slowTable(t *testing.T, table string) (*tabletest.Tables, *Relay) {
	t.Helper()
	f := tabletest.New(t)
	f.Exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM gone) > 2 THEN
			RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
		END IF; RETURN NULL; END $$`)
	f.Exec(`CREATE TRIGGER slow AFTER DELETE ON ` + table + ` REFERENCING OLD TABLE AS gone
		FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
	config := DefaultConfig()
	config.DatabaseURL, config.DeadLetterRetention = f.URL, 24*time.Hour
	r, err := New(config, outboxtest.NewPublisher(nil), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(t, err)
	t.Cleanup(r.Close)
	return f, r
}

func TestDeadLettersThatTakeLongAreDeletedInSmallerBatches(t *testing.T) {
	f, r := slowTable(t, "outbox_dead_letter")
	for id := range int64(7) {
		f.DeadLetter(id, "nack", "dead_at", "now() - interval '2 days'")
	}
	r.newRetention().round(t.Context())
	if left := tabletest.One[int](f, `SELECT count(*) FROM outbox_dead_letter`); left != 0 {
		t.Errorf("%d dead letters stay", left)
	}
}

func TestPublishedRowsThatTakeLongAreDeletedInSmallerBatches(t *testing.T) {
	f, r := slowTable(t, "outbox")
	var batch []outbox.Settlement
	for range 7 {
		f.Plain(1)
		row := outbox.Row{ID: tabletest.One[int64](f, `SELECT max(id) FROM outbox`)}
		f.Scan((*[16]byte)(&row.MessageID), `SELECT message_id FROM outbox WHERE id = $1`, row.ID)
		one := outbox.Settlement{Message: &outbox.Message{Row: row}, Decision: outbox.Decision{Action: outbox.Delete}}
		batch = append(batch, one)
	}
	if err := r.settler.settle(t.Context(), batch); err != nil {
		t.Error(err)
	}
	if left := tabletest.One[int](f, `SELECT count(*) FROM outbox`); left != 0 {
		t.Errorf("%d rows stay", left)
	}
}
