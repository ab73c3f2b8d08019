package doctor_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

const quotedTable = `"My Schema"."Out""Box"`

func TestBrokenTablesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, map[string]breakage{
		"no tables": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox, outbox_dead_letter, outbox_migrations CASCADE", "does not exist", "cdc-relay setup"),
		"no dead-letter table": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox_dead_letter", "public.outbox_dead_letter does not exist", "cdc-relay setup"),
		"no outbox": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox", "public.outbox does not exist", "cdc-relay setup"),
		"tables without their version": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox, outbox_dead_letter", "does not exist", "cdc-relay setup"),
		"a view": broken(doctor.Problem, doctor.Tables, "table",
			"ALTER TABLE outbox_dead_letter RENAME TO messages; ALTER INDEX outbox_dead_letter_pkey RENAME TO m1; ALTER INDEX outbox_dead_letter_dead_at_idx RENAME TO m2; ALTER INDEX outbox_dead_letter_ordering_key_idx RENAME TO m3; CREATE VIEW outbox_dead_letter AS SELECT * FROM messages",
			"public.outbox_dead_letter is a view, and has to be a table", "no row can be claimed",
			`ALTER VIEW "public"."outbox_dead_letter" RENAME TO "outbox_dead_letter_view";`),
		"a view in place of the outbox": broken(doctor.Problem, doctor.Tables, "table",
			"ALTER TABLE outbox RENAME TO outbox_v1; CREATE VIEW outbox AS SELECT * FROM outbox_v1",
			"public.outbox is a view", `ALTER TABLE "public"."outbox_v1" RENAME TO "outbox";`),
		"a type": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox_dead_letter; CREATE TYPE outbox_dead_letter AS (a int)",
			"public.outbox_dead_letter is a type, and",
			`ALTER TYPE "public"."outbox_dead_letter" RENAME TO "outbox_dead_letter_type";`),
		"an enum": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox; CREATE TYPE outbox AS ENUM ('a')", "public.outbox is a type, and",
			`ALTER TYPE "public"."outbox" RENAME TO "outbox_type";`),
		"a domain": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox; CREATE DOMAIN outbox AS text", "public.outbox is a domain, and",
			`ALTER DOMAIN "public"."outbox" RENAME TO "outbox_domain";`),
		"an index": broken(doctor.Problem, doctor.Tables, "table",
			"DROP TABLE outbox_dead_letter; CREATE INDEX outbox_dead_letter ON outbox (routing_key)",
			"public.outbox_dead_letter is an index, and"),
		"a missing column of dead letters": broken(doctor.Problem, doctor.Tables, "table",
			"INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason) VALUES (1, now(), gen_random_uuid(), 1, 1, 'k', 'rejected'); ALTER TABLE outbox_dead_letter DROP failure_reason, DROP schema_version, DROP created_at",
			"no column created_at, schema_version, failure_reason",
			`ADD COLUMN "failure_reason" text NOT NULL DEFAULT 'unknown';`),
		"a missing column": broken(doctor.Problem, doctor.Tables, "table",
			"ALTER TABLE outbox RENAME COLUMN headers TO old_headers", "no column headers",
			"no message can be published", `RENAME COLUMN "old_headers" TO "headers";`),
		"no version": broken(doctor.Problem, doctor.Tables, "migrations",
			"DROP TABLE outbox_migrations", "the version of the tables is unknown"),
		"a newer version": broken(doctor.Problem, doctor.Tables, "migrations",
			"UPDATE outbox_migrations SET version = 99", "use a newer cdc-relay").keep(),
		"an unlogged table": broken(doctor.Problem, doctor.Tables, "table",
			"DROP PUBLICATION $PUB; ALTER TABLE outbox SET UNLOGGED", "UNLOGGED", "SET LOGGED"),
		"an unlogged dead-letter table": broken(doctor.Warning, doctor.Tables, "table",
			"ALTER TABLE outbox_dead_letter SET UNLOGGED", "public.outbox_dead_letter is UNLOGGED",
			"dead letters are lost in a crash", "SET LOGGED"),
		"autovacuum off for the table": broken(doctor.Warning, doctor.Cleanup, "autovacuum",
			"ALTER TABLE outbox SET (autovacuum_enabled = off)", "RESET (autovacuum_enabled)"),
		"autovacuum of an ordinary table": broken(doctor.Warning, doctor.Cleanup, "autovacuum",
			"ALTER TABLE outbox RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay)",
			"SET (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_cost_delay=0)"),
		"names that need quotes": {func(p *patient) {
			p.Table = outbox.Table{Schema: "My Schema", Name: `Out"Box`}
			p.Publication, p.Slot = "Pub", p.Slot+"_2"
			p.setup()
			p.exec(`ALTER TABLE ` + quotedTable + ` SET (autovacuum_enabled = false)`)
		}, doctor.Warning, doctor.Cleanup, "autovacuum", []string{"ALTER TABLE " + quotedTable + " RESET"}, false},
		"a mistyped table": {func(p *patient) {
			p.Table.Name = "outbx"
		}, doctor.Problem, doctor.Tables, "table", []string{
			"table public.outbx does not exist in database", ", which has public.outbox", "# --table public.outbox, if that is meant", "# else: cdc-relay setup --table public.outbx",
		}, true},
		"another schema": {func(p *patient) {
			p.Table.Schema = "billing"
		}, doctor.Problem, doctor.Tables, "table", []string{"which has public.outbox", "# --table public.outbox, if that is meant"}, true},
		"quoted names in commands": {func(p *patient) {
			p.Table = outbox.Table{Schema: "My Schema", Name: `It's`}
			p.Slot, p.Publication = p.Slot+"_2", p.Publication+"_2"
		}, doctor.Problem, doctor.Tables, "table", []string{`cdc-relay setup --table '"My Schema"."It'\''s"' --slot `}, false},
	})
}

func TestAnUnreadableTableVersionIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.exec("REVOKE SELECT ON outbox_migrations FROM " + p.relayRole("REPLICATION"))
	p.fix(p.examine().want(doctor.Problem, doctor.Tables, "migrations", "may not read", `GRANT SELECT ON "public"."outbox_migrations" TO`))
	p.examine().wantOthersOK()
}

// partition replaces the outbox by a partitioned table.
func (p *patient) partition() {
	p.t.Helper()
	p.exec("CREATE TABLE parts (LIKE outbox INCLUDING ALL) PARTITION BY RANGE (id)", "CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (1000000)",
		"DROP TABLE outbox", "ALTER TABLE parts RENAME TO outbox", "ALTER PUBLICATION "+p.Publication+" ADD TABLE outbox")
}

func TestAPartitionedTableIsExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.partition()
	p.exec("ALTER PUBLICATION " + p.Publication + " SET (publish_via_partition_root = false)")
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "partition_root", "publishes partitions", "publish_via_partition_root = true"))
	r := p.examine()
	r.want(doctor.OK, doctor.Publication, "publication")
	r.want(doctor.OK, doctor.Tables, "table")
	r.want(doctor.OK, doctor.Cleanup, "dead_rows")
}

// These are faults of a partition that the partitioned table does not have.
func TestBrokenPartitionsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	part := func(level doctor.Level, check, statements string, words ...string) breakage {
		b := broken(level, doctor.Tables, check, statements, words...)
		breaks := b.breaks
		b.breaks = func(p *patient) {
			p.partition()
			breaks(p)
		}
		return b
	}
	breakAndFix(t, map[string]breakage{
		"a trigger": part(doctor.Problem, "triggers", returnsNull+"CREATE TRIGGER guard BEFORE DELETE ON part1 FOR EACH ROW EXECUTE FUNCTION f()",
			"trigger guard of public.part1 runs before each DELETE", `ALTER TABLE "public"."part1" DISABLE TRIGGER`),
		"no partition": part(doctor.Problem, "table", "DROP TABLE part1", "public.outbox has no partition: every INSERT fails",
			`CREATE TABLE "public"."outbox_default" PARTITION OF "public"."outbox" DEFAULT;`),
		"an unlogged partition": part(doctor.Problem, "table", "ALTER TABLE part1 SET UNLOGGED",
			"table public.part1 is UNLOGGED", `ALTER TABLE "public"."part1" SET LOGGED`),
		"a constraint": part(doctor.Warning, "constraints", "ALTER TABLE part1 ADD CONSTRAINT few CHECK (attempts < 3)",
			"constraint few of public.part1", `ALTER TABLE "public"."part1" DROP CONSTRAINT "few";`),
		"a foreign key": part(doctor.Problem, "references", "CREATE TABLE audit (message bigint REFERENCES part1 (id))",
			"refers to public.part1", "cannot be deleted"),
	})
}
