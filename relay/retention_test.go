package relay

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// The server ends a delete of many large dead letters. The trigger stands for the time that they take.
func TestDeadLettersThatTakeLongAreDeletedInSmallerBatches(t *testing.T) {
	f := tabletest.New(t)
	for id := range int64(7) {
		f.DeadLetter(id, "nack", "dead_at", "now() - interval '2 days'")
	}
	f.Exec(`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM gone) > 2 THEN
			RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
		END IF; RETURN NULL; END $$`)
	f.Exec(`CREATE TRIGGER slow AFTER DELETE ON outbox_dead_letter REFERENCING OLD TABLE AS gone
		FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
	config := DefaultConfig()
	config.DatabaseURL, config.Table, config.DeadLetterRetention = f.URL, tabletest.Name(), 24*time.Hour
	publisher, err := amqp.New(amqp.Config{URL: "amqp://localhost", MaxInFlight: config.MaxInFlight})
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(config, publisher, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.newRetention().round(t.Context())
	if left := tabletest.One[int](f, `SELECT count(*) FROM outbox_dead_letter`); left != 0 {
		t.Errorf("%d dead letters stay", left)
	}
}
