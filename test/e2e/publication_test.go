package e2e

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// The stream is then silent, as if nobody wrote.
func TestABrokenPublicationIsNoticedAndFixed(t *testing.T) {
	services.Thorough(t, "waits for timeouts")
	t.Parallel()
	for name, fault := range map[string][]string{
		"without the table": {`ALTER PUBLICATION {p} SET TABLE other`},
		"without inserts":   {`ALTER PUBLICATION {p} SET (publish = 'delete')`},
		// Postgres 18 reports it at the next write; earlier versions end the stream.
		"gone": {`DROP PUBLICATION {p}`, `INSERT INTO other DEFAULT VALUES`},
		// The relay notices by itself.
		"gone, with nobody writing": {`DROP PUBLICATION {p}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t).setUp()
			w.exec(`CREATE TABLE other (id bigint GENERATED ALWAYS AS IDENTITY)`)
			arrived := w.consume(w.queue)
			r := w.run()
			w.await(arrived, w.insert(nil))
			for _, sql := range fault {
				w.exec(strings.ReplaceAll(sql, "{p}", w.slot))
			}
			w.eventually("the relay has repaired the publication", func() bool {
				return value[bool](w, `SELECT EXISTS (SELECT 1 FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname
					WHERE t.pubname = $1 AND t.tablename = 'outbox' AND p.pubinsert)`, w.slot)
			})
			w.await(arrived, w.insert(nil))
			if !strings.Contains(r.logs(), "the publication ") {
				t.Error("the log does not say why")
			}
			r.noRejections()
		})
	}
}

// Postgres 18 can publish stored ones, and makes others virtual by default.
func TestGeneratedColumnsAreIgnored(t *testing.T) {
	if services.SharedPostgres(t).Major() < 18 {
		t.Skip("a publication leaves generated columns out before Postgres 18")
	}
	t.Parallel()
	w, arrived := consuming(t)
	r := w.run()
	w.await(arrived, w.insert(nil))
	w.exec(`ALTER TABLE outbox ADD COLUMN twice bigint GENERATED ALWAYS AS (id * 2) STORED, ADD COLUMN thrice bigint GENERATED ALWAYS AS (id * 3)`)
	w.exec(`ALTER PUBLICATION ` + w.slot + ` SET (publish_generated_columns = stored)`)
	w.await(arrived, w.insert(row{"ordering_key": "k"}))
	w.await(arrived, w.insert(row{"ordering_key": "k"}))
	w.emptied()
	if n := len(linesWith(r.logs(), `"WARN"`)) + len(linesWith(r.logs(), `"ERROR"`)); n != 0 || arrived.duplicates() != 0 {
		t.Errorf("%d warnings and %d duplicates", n, arrived.duplicates())
	}
}
