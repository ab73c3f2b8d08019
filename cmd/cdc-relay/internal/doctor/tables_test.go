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
		"no tables":                    wrong("tables/table", "DROP TABLE outbox, outbox_dead_letter, outbox_migrations CASCADE", "does not exist", "cdc-relay setup"),
		"no dead-letter table":         wrong("tables/table", "DROP TABLE outbox_dead_letter", "public.outbox_dead_letter does not exist", "cdc-relay setup"),
		"no outbox":                    wrong("tables/table", "DROP TABLE outbox", "public.outbox does not exist", "cdc-relay setup"),
		"tables without their version": wrong("tables/table", "DROP TABLE outbox, outbox_dead_letter", "does not exist", "cdc-relay setup"),
		"a view": wrong("tables/table", "ALTER TABLE outbox_dead_letter RENAME TO messages; ALTER INDEX outbox_dead_letter_pkey RENAME TO m1; ALTER INDEX outbox_dead_letter_dead_at_idx RENAME TO m2; ALTER INDEX outbox_dead_letter_ordering_key_idx RENAME TO m3; CREATE VIEW outbox_dead_letter AS SELECT * FROM messages",
			"public.outbox_dead_letter is a view, and has to be a table", "no row can be published",
			`ALTER VIEW "public"."outbox_dead_letter" RENAME TO "outbox_dead_letter_view";`),
		"a view in place of the outbox": wrong("tables/table", "ALTER TABLE outbox RENAME TO outbox_v1; CREATE VIEW outbox AS SELECT * FROM outbox_v1",
			"public.outbox is a view", `ALTER TABLE "public"."outbox_v1" RENAME TO "outbox";`),
		"a type": wrong("tables/table", "DROP TABLE outbox_dead_letter; CREATE TYPE outbox_dead_letter AS (a int)",
			"public.outbox_dead_letter is a type, and",
			`ALTER TYPE "public"."outbox_dead_letter" RENAME TO "outbox_dead_letter_type";`),
		"an enum": wrong("tables/table", "DROP TABLE outbox; CREATE TYPE outbox AS ENUM ('a')", "public.outbox is a type, and",
			`ALTER TYPE "public"."outbox" RENAME TO "outbox_type";`),
		"a domain": wrong("tables/table", "DROP TABLE outbox; CREATE DOMAIN outbox AS text", "public.outbox is a domain, and",
			`ALTER DOMAIN "public"."outbox" RENAME TO "outbox_domain";`),
		"an index": wrong("tables/table", "DROP TABLE outbox_dead_letter; CREATE INDEX outbox_dead_letter ON outbox (routing_key)",
			"public.outbox_dead_letter is an index, and"),
		"a missing column of dead letters": wrong("tables/table", "INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason) VALUES (1, now(), gen_random_uuid(), 1, 1, 'k', 'rejected'); ALTER TABLE outbox_dead_letter DROP failure_reason, DROP schema_version, DROP created_at",
			"no column created_at, schema_version, failure_reason",
			`ADD COLUMN "failure_reason" text NOT NULL DEFAULT 'unknown';`),
		"a missing column": wrong("tables/table", "ALTER TABLE outbox RENAME COLUMN headers TO old_headers", "no column headers",
			"no message can be published", `RENAME COLUMN "old_headers" TO "headers";`),
		"no version":         wrong("tables/migrations", "DROP TABLE outbox_migrations", "the version of the tables is unknown"),
		"no table of relays": warns("tables/table", "DROP TABLE outbox_relay", "public.outbox_relay does not exist", "cdc-relay setup"),
		"a newer version":    wrong("tables/migrations", "UPDATE outbox_migrations SET version = 99", "use a newer cdc-relay").keep(),
		"an unlogged table":  wrong("tables/table", "DROP PUBLICATION $PUB; ALTER TABLE outbox SET UNLOGGED", "UNLOGGED", "SET LOGGED"),
		"an unlogged dead-letter table": warns("tables/table", "ALTER TABLE outbox_dead_letter SET UNLOGGED", "public.outbox_dead_letter is UNLOGGED",
			"dead letters are lost in a crash", "SET LOGGED"),
		"autovacuum off for the table": warns("cleanup/autovacuum", "ALTER TABLE outbox SET (autovacuum_enabled = off)", "RESET (autovacuum_enabled)"),
		"autovacuum of an ordinary table": warns("cleanup/autovacuum", "ALTER TABLE outbox RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay)",
			"SET (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_cost_delay=0)"),
		"names that need quotes": warns("cleanup/autovacuum", "ALTER TABLE "+quotedTable+" SET (autovacuum_enabled = false)", "ALTER TABLE "+quotedTable+" RESET").after(func(p *patient) {
			p.Table = outbox.Table{Schema: "My Schema", Name: `Out"Box`}
			p.Publication, p.Slot = "Pub", p.Slot+"_2"
			p.setup()
		}),
		"a mistyped table": wrong("tables/table", "", "table public.outbx does not exist in database", ", which has public.outbox",
			"# --table public.outbox, if that is meant", "# else: cdc-relay setup --table public.outbx").after(func(p *patient) { p.Table.Name = "outbx" }).keep(),
		"another schema": wrong("tables/table", "", "which has public.outbox",
			"# --table public.outbox, if that is meant").after(func(p *patient) { p.Table.Schema = "billing" }).keep(),
		"quoted names in commands": wrong("tables/table", "", `cdc-relay setup --table '"My Schema"."It'\''s"' --slot `).after(func(p *patient) {
			p.Table = outbox.Table{Schema: "My Schema", Name: `It's`}
			p.Slot, p.Publication = p.Slot+"_2", p.Publication+"_2"
		}),
	})
}

func (p *patient) partition() {
	p.Helper()
	p.exec("CREATE TABLE parts (LIKE outbox INCLUDING ALL) PARTITION BY RANGE (id)", "CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (1000000)",
		"DROP TABLE outbox", "ALTER TABLE parts RENAME TO outbox", "ALTER PUBLICATION "+p.Publication+" ADD TABLE outbox")
}

// These are faults of a partition that the partitioned table does not have.
func TestBrokenPartitionsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	part := func(level doctor.Level, check, statements string, words ...string) breakage {
		return broken(level, "tables/"+check, statements, words).after((*patient).partition)
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
		"partitions are published": wrong("publication/partition_root", "ALTER PUBLICATION $PUB SET (publish_via_partition_root = false)",
			"publishes partitions", "publish_via_partition_root = true").after((*patient).partition),
		"no fault": passes("").after((*patient).partition),
		"a foreign key": part(doctor.Problem, "references", "CREATE TABLE audit (message bigint REFERENCES part1 (id))",
			"refers to public.part1", "cannot be deleted"),
	})
}

const returnsNull = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "

// Rows cannot be deleted, moved or inserted.
func TestObstaclesToDeletesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	trigger := func(level doctor.Level, on, body string, words ...string) breakage {
		return broken(level, "tables/triggers", "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "+body+"; END $$; "+
			"CREATE TRIGGER guard "+on+" FOR EACH ROW EXECUTE FUNCTION f()", words)
	}
	reference := func(level doctor.Level, table, action string, words ...string) breakage {
		return broken(level, "tables/references", "CREATE UNIQUE INDEX ON outbox_dead_letter (id); "+
			"CREATE TABLE audit (message bigint REFERENCES "+table+" (id) "+action+")", words)
	}
	const disable, aside = `DISABLE TRIGGER "guard"`, "rows stay after they were published"
	const once = `INSERT INTO outbox (routing_key, payload) VALUES ('k', '{"a": "{}"}'), ('k', '"text"'), ('k', '1'), ('k', '"a\u0000b"'), ('k', '"[note] text"'),
		('k', '"{name} text"'); INSERT INTO outbox (routing_key, payload_bytes) VALUES ('k', '{')`
	breakAndFix(t, map[string]breakage{
		"a DELETE that is suppressed": trigger(doctor.Problem, "BEFORE DELETE ON outbox", "RETURN NULL", "returns NULL, which is null there", aside, disable),
		"a DELETE that returns NEW":   trigger(doctor.Problem, "BEFORE DELETE ON outbox", "RETURN NEW", "before each DELETE and returns NEW, which is null there", aside, disable),
		"a DELETE that may return NULL": trigger(doctor.Problem, "BEFORE DELETE ON outbox",
			"IF now() < 'epoch' THEN RETURN NULL; END IF; RETURN OLD", "can return NULL", aside, disable),
		"a trigger for all events": trigger(doctor.Warning, "BEFORE INSERT OR UPDATE OR DELETE ON outbox",
			"IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW", "runs in statements of the relay", disable),
		"a comment that says RETURN NULL": trigger(doctor.Warning, "BEFORE DELETE ON outbox",
			"/* not RETURN NULL */ RETURN OLD -- as RETURN NULL would lose it\n", "runs in statements of the relay", disable),
		"an INSERT that is suppressed": trigger(doctor.Problem, "BEFORE INSERT ON outbox", "RETURN NULL", "before each INSERT and returns NULL", "resent dead letters are lost", disable),
		"an INSERT that returns OLD":   trigger(doctor.Problem, "BEFORE INSERT ON outbox", "RETURN OLD", "returns OLD, which is null there", disable),
		"an INSERT that is filtered": trigger(doctor.Warning, "BEFORE INSERT ON outbox",
			"IF NEW.routing_key = '' THEN RETURN NULL; END IF; RETURN NEW", "can return NULL: then messages of applications", disable),
		"a dead letter that stays":  trigger(doctor.Problem, "BEFORE DELETE ON outbox_dead_letter", "RETURN NEW", "cannot be resent or deleted", disable),
		"an UPDATE that is watched": trigger(doctor.Warning, "AFTER UPDATE ON outbox", "RETURN NULL", "runs in statements of the relay", aside, disable),
		"a DELETE that always fails": trigger(doctor.Problem, "BEFORE DELETE ON outbox", "RAISE EXCEPTION 'append only'",
			"always fails: its function has no RETURN", aside, disable),
		"an INSERT that always fails": trigger(doctor.Problem, "AFTER INSERT ON outbox", "RAISE EXCEPTION 'closed'", "no message can be inserted", disable),
		"a dead letter that always fails": trigger(doctor.Problem, "BEFORE INSERT ON outbox_dead_letter", "RAISE EXCEPTION 'no'",
			"always fails", "no message can become a dead letter", disable),
		"a DELETE that fails at times": warns("tables/triggers", "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; CREATE TRIGGER guard BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.routing_key = 'x') EXECUTE FUNCTION f()",
			"If it fails", aside, disable),
		"a RETURN in parentheses":  trigger(doctor.Warning, "BEFORE DELETE ON outbox", "RETURN(OLD)", "runs in statements of the relay", disable),
		"dead letters suppressed":  trigger(doctor.Problem, "BEFORE INSERT ON outbox_dead_letter", "return  null", "a dead letter that it suppresses is lost", disable),
		"an application's trigger": passes("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; CREATE TRIGGER fill BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION f()"),
		"a rule": wrong("tables/triggers", "CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING", "rule keep rewrites statements",
			`DISABLE RULE "keep"`),
		"a foreign key":               reference(doctor.Problem, "outbox", "", "foreign key audit_message_fkey of public.audit", "is published, cannot be deleted", "DROP CONSTRAINT"),
		"a foreign key that cascades": reference(doctor.Warning, "outbox", "ON DELETE CASCADE", "each message that is published changes rows there"),
		"a foreign key to the dead":   reference(doctor.Warning, "outbox_dead_letter", "", "dead letters cannot be deleted"),
		"a constraint of attempts": warns("tables/constraints", "ALTER TABLE outbox ADD CONSTRAINT few CHECK (attempts < 3 AND routing_key <> '')",
			"constraint few of public.outbox", "becomes a dead letter", `DROP CONSTRAINT "few"`),
		"a constraint of dead letters": warns("tables/constraints", "ALTER TABLE outbox_dead_letter ADD CONSTRAINT short CHECK (length(routing_key) < 9)",
			"cannot be moved there, and its row is set aside"),
		"a foreign key of dead letters": warns("tables/constraints", "CREATE TABLE topics (name text PRIMARY KEY); ALTER TABLE outbox_dead_letter ADD CONSTRAINT known FOREIGN KEY (routing_key) REFERENCES topics (name)",
			"constraint known of public.outbox_dead_letter", "cannot be moved there, and its row is set aside",
			`DROP CONSTRAINT "known"`),
		"a unique constraint of dead letters": warns("tables/constraints", "ALTER TABLE outbox_dead_letter ADD CONSTRAINT once UNIQUE (message_id)",
			"constraint once of public.outbox_dead_letter", "cannot be moved there, and its row is set aside",
			`DROP CONSTRAINT "once"`),
		"a unique index of dead letters": warns("tables/constraints", "CREATE UNIQUE INDEX once ON outbox_dead_letter (lower(routing_key))",
			"unique index public.once of public.outbox_dead_letter", "cannot be moved there, and its row is set aside",
			"DROP INDEX public.once;"),
		"unique indexes with the key":           passes("CREATE UNIQUE INDEX ON outbox_dead_letter (message_id, id); CREATE UNIQUE INDEX ON outbox (id, available_at)"),
		"a unique index of the relay's columns": warns("tables/constraints", "CREATE UNIQUE INDEX once ON outbox (available_at)", "unique index public.once", "becomes a dead letter"),
		"a constraint of the application":       passes("ALTER TABLE outbox ADD CHECK (routing_key <> '')"),
		"row-level security":                    warns("tables/row_security", "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "has no policy for INSERT", "rejects every row"),
		"rows for a newer relay": warns("tables/schema_version", "INSERT INTO outbox (routing_key, payload, schema_version) VALUES ('k', '1', 3), ('k', '1', 2), ('k', '1', 1)",
			"2 rows of those examined", "above 1, up to 3", "leaves them in the table"),
		"rows that have expired": warns("tables/expires_at", "INSERT INTO outbox (routing_key, payload, expires_at) VALUES ('k', '1', now()), ('k', '1', '-infinity'), ('k', '1', now() + interval '1 h'), ('k', '1', NULL)",
			"2 rows of those examined have expired", "SET expires_at = NULL"),
		"rows from the future": warns("tables/created_at", "INSERT INTO outbox (routing_key, payload, created_at) VALUES ('k', '1', now() + interval '300 years'), ('k', '1', 'infinity'), ('k', '1', now())",
			"2 rows of those examined", "up to infinity", "they wait until then"),
		"payloads that are serialised once": passes(once),
		"payloads that are serialised twice": warns("tables/payload", once+`; INSERT INTO outbox (routing_key, payload) VALUES ('k', '"{\"a\": 1}"'), ('k', '" [1]"'), ('k', '"{\n}\n"')`,
			"3 payloads are JSON text inside a JSON string", "give the client library an object").keep(),
	})
}

// Postgres rejects the deletes of the relay because of a publication of others.
func TestPublicationsThatForbidDeletesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	publication := func(statements string, words ...string) breakage {
		return wrong("tables/replica_identity", "CREATE PUBLICATION other FOR "+statements, words...)
	}
	const identity = `ALTER TABLE "public"."outbox" REPLICA IDENTITY DEFAULT;`
	breakAndFix(t, map[string]breakage{
		"no identity": publication("TABLE outbox; ALTER TABLE outbox REPLICA IDENTITY NOTHING",
			"every delete or update of public.outbox because of other: cannot delete from table", identity),
		"updates only": publication("ALL TABLES WITH (publish = 'update'); ALTER TABLE outbox REPLICA IDENTITY NOTHING",
			"because of other: cannot update table", identity),
		"a column list": publication("TABLE outbox (routing_key)",
			"because of other: ", "Column list used by the publication does not cover the replica identity", "ALTER PUBLICATION other SET (publish = 'insert');"),
		"a row filter": publication("TABLE outbox WHERE (attempts > 0)", "not part of the replica identity", "SET (publish = 'insert');"),
	})
}

func TestALockedTableIsReportedWithTheSession(t *testing.T) {
	t.Parallel()
	p := healthy(t, services.SharedPostgres(t))
	p.exec("SET application_name = 'a migration'", "BEGIN", "LOCK TABLE outbox")
	p.examine().want(doctor.Problem, doctor.Tables, "table", "public.outbox is locked by Postgres process", "a migration, idle in transaction", "pg_terminate_backend(")
}
