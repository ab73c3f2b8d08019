package doctor_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// The owner of the outbox chooses the names of its sequence, of its roles and of the publication. An administrator runs
// the repairs.
func TestRepairsRunNothingThatANameHides(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.exec("CREATE TABLE victim ()")
	sequence := "outbox_id_seq"
	for _, name := range []string{
		"a;\nDROP TABLE victim; --", "a\"; DROP TABLE victim; --", "a\r; DROP TABLE victim; --", "a'; DROP TABLE victim; --", "$$; DROP TABLE victim; $$", "a\u202e;\nDROP TABLE victim",
	} {
		role, _ := p.role("REPLICATION")
		renamed := role[:20] + name
		p.exec("ALTER SEQUENCE "+outbox.QuoteIdentifier(sequence)+" RENAME TO "+outbox.QuoteIdentifier(name),
			"ALTER ROLE "+role+" RENAME TO "+outbox.QuoteIdentifier(renamed), "SET ROLE "+outbox.QuoteIdentifier(renamed), "RESET ROLE")
		sequence, p.Publication = name, name
		p.Administrator = true
		p.asRole(renamed)
		p.exec("CREATE PUBLICATION " + outbox.QuoteIdentifier(name) + " WITH (publish = 'insert', publish_via_partition_root = true)")
		repairs := doctor.Repairs(p.examine().findings)
		for _, repair := range repairs {
			if repair.SQL == "" {
				continue
			}
			if err := repair.Run(t.Context(), p.conn.PgConn()); err != nil {
				t.Errorf("%q: %s: %v", name, repair, err)
			}
		}
		r := p.examine()
		for _, ok := range []string{"relay", "sequence"} {
			r.want(doctor.OK, doctor.Grants, ok)
		}
		r.want(doctor.OK, doctor.Publication, "publication")
		p.exec("TABLE victim", "DROP PUBLICATION "+outbox.QuoteIdentifier(name), "ALTER ROLE "+outbox.QuoteIdentifier(renamed)+" RENAME TO "+role)
	}
}

func TestARepairIsOneStatement(t *testing.T) {
	p := onDatabase(t, services.SharedPostgres(t).Database(t))
	var refused *pgconn.PgError
	if err := (doctor.Repair{SQL: "SELECT 1; SELECT 2"}).Run(t.Context(), p.conn.PgConn()); !errors.As(err, &refused) || refused.Code != "42601" {
		t.Errorf("got %v", err)
	}
}

// Quoted names mean the same to Postgres, in statements and in strings.
func TestPostgresReadsQuotedNames(t *testing.T) {
	p := onDatabase(t, services.SharedPostgres(t).Database(t))
	for _, name := range []string{"a\n; SELECT 1; --", "a\r\\! id", "a'--", `a"b`, "a$$b", "a\u202eb\\", "\U000e0001", strings.Repeat("é", 31), "\\\x1b"} {
		var column, text string
		statement := "SELECT " + outbox.QuoteLiteral(name) + ", k.* FROM (SELECT attname FROM pg_attribute WHERE attrelid = " +
			outbox.QuoteLiteral(outbox.Table{Schema: "public", Name: name}.SQL()) + "::regclass AND attnum = 1) k"
		p.exec("CREATE TABLE " + outbox.Table{Schema: "public", Name: name}.Printed() + " (" + outbox.QuoteIdentifier(name) + " text)")
		if err := p.conn.QueryRow(t.Context(), statement).Scan(&text, &column); err != nil || text != name || column != name {
			t.Errorf("%q: got %q, %q, %v", name, text, column, err)
		}
	}
}
