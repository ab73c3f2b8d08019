package doctor_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/test/services"
)

const returnsNull = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "

// Rows cannot be deleted, moved or inserted.
func TestObstaclesToDeletesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	trigger := func(level doctor.Level, on, body string, words ...string) breakage {
		return breakage{func(p *patient) {
			p.exec("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "+body+"; END $$", "CREATE TRIGGER guard "+on+" FOR EACH ROW EXECUTE FUNCTION f()")
		}, level, doctor.Tables, "triggers", words, false}
	}
	reference := func(level doctor.Level, table, action string, words ...string) breakage {
		return breakage{func(p *patient) {
			p.exec("CREATE UNIQUE INDEX ON outbox_dead_letter (id)", "CREATE TABLE audit (message bigint REFERENCES "+table+" (id) "+action+")")
		}, level, doctor.Tables, "references", words, false}
	}
	const disable, aside = `DISABLE TRIGGER "guard"`, "rows stay after they were published"
	breakAndFix(t, map[string]breakage{
		"a DELETE that is suppressed": trigger(doctor.Problem, "BEFORE DELETE ON outbox", "RETURN NULL", "returns NULL", aside, disable),
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
		"a DELETE that fails at times": broken(doctor.Warning, doctor.Tables, "triggers",
			"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$; CREATE TRIGGER guard BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.routing_key = 'x') EXECUTE FUNCTION f()",
			"If it fails", aside, disable),
		"a RETURN in parentheses": trigger(doctor.Warning, "BEFORE DELETE ON outbox", "RETURN(OLD)", "runs in statements of the relay", disable),
		"dead letters suppressed": trigger(doctor.Problem, "BEFORE INSERT ON outbox_dead_letter", "return  null", "a dead letter that it suppresses is lost", disable),
		"an application's trigger": broken(doctor.OK, doctor.Tables, "table",
			"CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$; CREATE TRIGGER fill BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION f()").keep(),
		"a rule": broken(doctor.Problem, doctor.Tables, "triggers",
			"CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING", "rule keep rewrites statements",
			`DISABLE RULE "keep"`),
		"a foreign key":               reference(doctor.Problem, "outbox", "", "foreign key audit_message_fkey of public.audit", "is published, cannot be deleted", "DROP CONSTRAINT"),
		"a foreign key that cascades": reference(doctor.Warning, "outbox", "ON DELETE CASCADE", "each message that is published changes rows there"),
		"a foreign key to the dead":   reference(doctor.Warning, "outbox_dead_letter", "", "dead letters cannot be deleted"),
		"a constraint of attempts": broken(doctor.Warning, doctor.Tables, "constraints",
			"ALTER TABLE outbox ADD CONSTRAINT few CHECK (attempts < 3 AND routing_key <> '')",
			"constraint few of public.outbox", "becomes a dead letter", `DROP CONSTRAINT "few"`),
		"a constraint of dead letters": broken(doctor.Warning, doctor.Tables, "constraints",
			"ALTER TABLE outbox_dead_letter ADD CONSTRAINT short CHECK (length(routing_key) < 9)",
			"cannot be moved there, and its row is set aside"),
		"a foreign key of dead letters": broken(doctor.Warning, doctor.Tables, "constraints",
			"CREATE TABLE topics (name text PRIMARY KEY); ALTER TABLE outbox_dead_letter ADD CONSTRAINT known FOREIGN KEY (routing_key) REFERENCES topics (name)",
			"constraint known of public.outbox_dead_letter", "cannot be moved there, and its row is set aside",
			`DROP CONSTRAINT "known"`),
		"a unique constraint of dead letters": broken(doctor.Warning, doctor.Tables, "constraints",
			"ALTER TABLE outbox_dead_letter ADD CONSTRAINT once UNIQUE (message_id)",
			"constraint once of public.outbox_dead_letter", "cannot be moved there, and its row is set aside",
			`DROP CONSTRAINT "once"`),
		"a unique index of dead letters": broken(doctor.Warning, doctor.Tables, "constraints",
			"CREATE UNIQUE INDEX once ON outbox_dead_letter (lower(routing_key))",
			"unique index public.once of public.outbox_dead_letter", "cannot be moved there, and its row is set aside",
			"DROP INDEX public.once;"),
		"unique indexes with the key": broken(doctor.OK, doctor.Tables, "table",
			"CREATE UNIQUE INDEX ON outbox_dead_letter (message_id, id); CREATE UNIQUE INDEX ON outbox (id, available_at)").keep(),
		"a unique index of the relay's columns": broken(doctor.Warning, doctor.Tables, "constraints",
			"CREATE UNIQUE INDEX once ON outbox (available_at)", "unique index public.once", "becomes a dead letter"),
		"a constraint of the application": broken(doctor.OK, doctor.Tables, "table",
			"ALTER TABLE outbox ADD CHECK (routing_key <> '')").keep(),
		"row-level security": broken(doctor.Warning, doctor.Tables, "row_security",
			"ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "has no policy for INSERT", "rejects every row"),
		"rows for a newer relay": broken(doctor.Warning, doctor.Tables, "schema_version",
			"INSERT INTO outbox (routing_key, payload, schema_version) VALUES ('k', '1', 3), ('k', '1', 2), ('k', '1', 1)",
			"2 rows of those examined", "above 1, up to 3", "leaves them in the table"),
		"rows that have expired": broken(doctor.Warning, doctor.Tables, "expires_at",
			"INSERT INTO outbox (routing_key, payload, expires_at) VALUES ('k', '1', now()), ('k', '1', '-infinity'), ('k', '1', now() + interval '1 h'), ('k', '1', NULL)",
			"2 rows of those examined have expired", "SET expires_at = NULL"),
		"rows from the future": broken(doctor.Warning, doctor.Tables, "created_at",
			"INSERT INTO outbox (routing_key, payload, created_at) VALUES ('k', '1', now() + interval '300 years'), ('k', '1', 'infinity'), ('k', '1', now())",
			"2 rows of those examined", "up to infinity", "they wait until then"),
	})
}

func TestDoublySerialisedPayloadsAreReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('k', '{"a": "{}"}'), ('k', '"text"'), ('k', '1')`, `INSERT INTO outbox (routing_key, payload_bytes) VALUES ('k', '{')`,
		`INSERT INTO outbox (routing_key, payload) VALUES ('k', '"a\u0000b"'), ('k', '"[note] text"'), ('k', '"{name} text"')`)
	p.examine().wantOthersOK()
	p.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('k', '"{\"a\": 1}"'), ('k', '" [1]"'), ('k', '"{\n}\n"')`)
	p.examine().want(doctor.Warning, doctor.Tables, "payload", "3 payloads are JSON text inside a JSON string", "give the client library an object")
}
