package e2e

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// Long error texts with any characters are cut so that every database encoding accepts them. Otherwise the row could
// not be updated.
func TestLastErrorFitsIntoTheTable(t *testing.T) {
	t.Parallel()
	for encoding, letter := range map[string]string{"UTF8": "€", "LATIN1": "ä"} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, services.Database(t, "TEMPLATE template0 ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C'"),
				services.VHost(t)).setUp()
			exchange := strings.Repeat(letter, 80)
			if err := w.channel().ExchangeDeclare(exchange, "fanout", false, true, false, false, nil); err != nil {
				t.Fatal(err)
			}
			arrived := w.consume(w.queue)
			w.run("--max-retries", "0")
			var bad []string
			for i := range 3 { // one of three cuts a character of two or three bytes
				bad = append(bad, w.insert(row{"exchange": exchange, "routing_key": strings.Repeat("\x01", 190+i)}))
			}
			bad = append(bad, w.insert(row{"headers": `{"` + strings.Repeat("k", 256) + `": 1}`}),
				w.insert(row{"headers": `{"` + strings.Repeat("k", 255) + `": {"` + strings.Repeat(letter, 80) + `": 1e999}}`}))
			for _, id := range bad {
				if dead := w.awaitDeadLetter(id); dead.LastError == "" {
					t.Error("a dead letter without an error")
				}
			}
			w.await(arrived, w.insert(nil))
			w.emptied()
		})
	}
}
