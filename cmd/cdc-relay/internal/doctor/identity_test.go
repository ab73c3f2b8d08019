package doctor_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Postgres rejects the deletes of the relay because of a publication of others.
func TestPublicationsThatForbidDeletesAreReported(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		breaks string
		words  []string
	}{
		"no identity": {
			"CREATE PUBLICATION other FOR TABLE outbox; ALTER TABLE outbox REPLICA IDENTITY NOTHING",
			[]string{"every delete or update of public.outbox because of other: cannot delete from table", `ALTER TABLE "public"."outbox" REPLICA IDENTITY DEFAULT;`},
		},
		"updates only": {
			"CREATE PUBLICATION other FOR ALL TABLES WITH (publish = 'update'); ALTER TABLE outbox REPLICA IDENTITY NOTHING",
			[]string{"because of other: cannot update table", `ALTER TABLE "public"."outbox" REPLICA IDENTITY DEFAULT;`},
		},
		"a column list": {
			"CREATE PUBLICATION other FOR TABLE outbox (routing_key)",
			[]string{"because of other: ", "Column list used by the publication does not cover the replica identity", `ALTER PUBLICATION other SET (publish = 'insert');`},
		},
		"a row filter": {
			"CREATE PUBLICATION other FOR TABLE outbox WHERE (attempts > 0)", []string{"not part of the replica identity", `SET (publish = 'insert');`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := healthy(t, services.SharedPostgres(t))
			p.exec(test.breaks)
			p.fix(p.examine().want(doctor.Problem, doctor.Tables, "replica_identity", test.words...))
			p.examine().wantOthersOK()
		})
	}
}
