package doctor_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

// The table differs from its definition.
func TestBrokenColumnsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	make := func(level doctor.Level, change string, words ...string) breakage {
		return broken(level, "tables/column", "INSERT INTO outbox (routing_key, payload) VALUES ('k', '{}'); "+change, words)
	}
	const unread, fails = "the relay cannot read such rows", "an INSERT that leaves it out fails"
	breakAndFix(t, map[string]breakage{
		"message_id text":     make(doctor.Problem, "ALTER TABLE outbox ALTER message_id TYPE text", "message_id of public.outbox is text, and has to be uuid", unread),
		"headers text":        make(doctor.Problem, "ALTER TABLE outbox ALTER headers TYPE text", "headers of public.outbox is text, and has to be jsonb", unread),
		"payload jsonb":       make(doctor.Problem, "ALTER TABLE outbox ALTER payload TYPE jsonb", "is jsonb, and has to be json", "publishes a different value"),
		"id integer":          make(doctor.Problem, "ALTER TABLE outbox ALTER id TYPE integer", "is integer, and has to be bigint", unread),
		"created_at local":    make(doctor.Problem, "ALTER TABLE outbox ALTER created_at TYPE timestamp", "is timestamp without time zone, and has to be timestamp with time zone"),
		"a short text":        make(doctor.Warning, "ALTER TABLE outbox ALTER last_error TYPE varchar(100)", "is character varying(100), and should be text", "cannot be written"),
		"a dead uuid as text": make(doctor.Problem, "ALTER TABLE outbox_dead_letter ALTER message_id TYPE text", "message_id of public.outbox_dead_letter is text, and has to be uuid"),
		"routing_key null":    make(doctor.Problem, "ALTER TABLE outbox ALTER routing_key DROP NOT NULL", "routing_key of public.outbox may be null", "cannot read a row without it"),
		"attempts null": make(doctor.Problem, "ALTER TABLE outbox ALTER attempts DROP NOT NULL; UPDATE outbox SET attempts = NULL",
			"attempts of public.outbox may be null", `SET "attempts" = 0 WHERE "attempts" IS NULL`),
		"exchange not null": make(doctor.Problem, "ALTER TABLE outbox_dead_letter ALTER exchange SET NOT NULL", "is NOT NULL", "cannot move a message there"),
		"a generated column": make(doctor.Problem, "ALTER TABLE outbox DROP ordering_key; ALTER TABLE outbox ADD ordering_key text GENERATED ALWAYS AS (payload->>'order') STORED; "+
			"CREATE INDEX ON outbox (ordering_key, id) WHERE ordering_key IS NOT NULL; CREATE INDEX ON outbox (ordering_key, coalesce_key, id) WHERE coalesce_key IS NOT NULL",
			"ordering_key of public.outbox is generated", "not in the stream", "DROP EXPRESSION"),
		"no default":                  make(doctor.Warning, "ALTER TABLE outbox ALTER message_id DROP DEFAULT", "message_id of public.outbox has no default", fails),
		"no identity":                 make(doctor.Warning, "ALTER TABLE outbox ALTER id DROP IDENTITY", "id of public.outbox has no default", fails, "setval"),
		"a column that the dead lack": make(doctor.Warning, "ALTER TABLE outbox ADD note character varying(9)", "is not in outbox_dead_letter with the same type", `ADD COLUMN "note" character varying(9)`),
		"a column of another type":    make(doctor.Warning, "ALTER TABLE outbox ADD note text; ALTER TABLE outbox_dead_letter ADD note integer", "dead letters lose its value", `ALTER COLUMN "note" TYPE text`),
		"a dead column too many":      make(doctor.Problem, "ALTER TABLE outbox_dead_letter ADD note text NOT NULL", "note of public.outbox_dead_letter is not the relay's", "cannot move a message there"),
		"a column too many":           make(doctor.Warning, "ALTER TABLE outbox ADD tenant int NOT NULL DEFAULT 1; ALTER TABLE outbox ALTER tenant DROP DEFAULT", "tenant of public.outbox", fails),
	})
}

// A row that leaves the column out gets another value than the definition gives it.
func TestWrongDefaultsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	sets := func(level doctor.Level, column, value string, words ...string) breakage {
		words = append(words, "column "+column+" of public.outbox has the default")
		b := broken(level, "tables/column", "ALTER TABLE outbox ALTER "+column+" SET DEFAULT "+value, words)
		b.asIs = level == doctor.OK
		return b
	}
	const set, drop = "SET DEFAULT ", "DROP DEFAULT;"
	breakAndFix(t, map[string]breakage{
		"one message_id":         sets(doctor.Problem, "message_id", "'00000000-0000-0000-0000-000000000001'", "all messages have the same ID", set+"gen_random_uuid();"),
		"attempts made":          sets(doctor.Problem, "attempts", "9", "dead letters too soon", set+"0;"),
		"a newer version":        sets(doctor.Problem, "schema_version", "'2'", "stay in the table", set+"1;"),
		"one time":               sets(doctor.Warning, "created_at", "'2000-01-01'", "timestamp and age", set+"now();"),
		"never available":        sets(doctor.Problem, "available_at", "'infinity'", "no message streams", drop),
		"available later":        sets(doctor.Warning, "available_at", "now() + interval '5 minutes'", "no message streams", drop),
		"expired":                sets(doctor.Problem, "expires_at", "now()", "expire", drop),
		"expired long ago":       sets(doctor.Problem, "expires_at", "'2000-01-01'", "expire", drop),
		"expires later":          sets(doctor.Warning, "expires_at", "now() + interval '1 day'", "expire", drop),
		"one ordering key":       sets(doctor.Warning, "ordering_key", "'all'", "wait for one another", drop),
		"one coalesce key":       sets(doctor.Problem, "coalesce_key", "'all'", "only the newest", drop),
		"always duplicates":      sets(doctor.Warning, "possible_duplicate", "true", "x-possible-duplicate", drop),
		"a second body":          sets(doctor.Problem, "payload", "'{}'", "two bodies", drop),
		"an exchange on purpose": sets(doctor.OK, "exchange", "'shop'"),
		"no limit on purpose":    sets(doctor.OK, "max_attempts", "0", "without a limit", "an ordering key waits"),
		"no limit as a text":     sets(doctor.OK, "max_attempts", "'0'", "without a limit"),
		"a limit":                sets(doctor.OK, "max_attempts", "3", "default 3"),
		"a limit below zero":     sets(doctor.Problem, "max_attempts", "-1", "messages become dead letters", drop),
		"equivalent ones": passes("CREATE FUNCTION f() RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'; " +
			"ALTER TABLE outbox ALTER message_id SET DEFAULT f(), ALTER created_at SET DEFAULT clock_timestamp(), ALTER attempts SET DEFAULT '0', " +
			"ALTER schema_version SET DEFAULT '1', ALTER possible_duplicate SET DEFAULT false, ALTER expires_at SET DEFAULT NULL"),
	})
}

// An index of the migration is missing or invalid.
func TestMissingIndexesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	index := func(level doctor.Level, breaks string, words ...string) breakage {
		return broken(level, "tables/index", breaks, words)
	}
	breakAndFix(t, map[string]breakage{
		"no primary key":      index(doctor.Problem, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "no valid primary key (id)", `ADD PRIMARY KEY (id)`),
		"another primary key": index(doctor.Problem, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; ALTER TABLE outbox ADD PRIMARY KEY (message_id)", "CREATE UNIQUE INDEX CONCURRENTLY"),
		"no primary key of the dead letters": index(doctor.Problem, "ALTER TABLE outbox_dead_letter DROP CONSTRAINT outbox_dead_letter_pkey",
			"primary key (id, message_id)", `"outbox_dead_letter" ADD PRIMARY KEY (id, message_id)`),
		"no index on available_at": index(doctor.Warning, "DROP INDEX outbox_available_at_idx", `CREATE INDEX CONCURRENTLY ON "public"."outbox" (available_at, id) WHERE available_at IS NOT NULL;`),
		"another predicate": index(doctor.Warning, "DROP INDEX outbox_coalesce_key_idx; CREATE INDEX ON outbox (ordering_key, coalesce_key, id) WHERE attempts = 0",
			"no valid index on (ordering_key, coalesce_key, id)"),
		"an invalid index":  index(doctor.Warning, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_ordering_key_idx'::regclass", "REINDEX INDEX CONCURRENTLY public.outbox_ordering_key_idx;"),
		"left by a REINDEX": index(doctor.Warning, "CREATE INDEX outbox_ordering_key_idx_ccnew1 ON outbox (ordering_key, id) WHERE ordering_key IS NOT NULL; UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_ordering_key_idx_ccnew1'::regclass", "DROP INDEX CONCURRENTLY public.outbox_ordering_key_idx_ccnew1;"),
		"a partitioned table": index(doctor.Warning, "DROP INDEX parts_ordering_key_id_idx",
			`CREATE INDEX ON "public"."outbox" (ordering_key, id) WHERE ordering_key IS NOT NULL;`).after((*patient).partition),
		"an index that does it": passes("DROP INDEX outbox_available_at_idx; CREATE INDEX ON outbox (available_at, id, attempts)"),
	})
}

// An INSERT gets no id, or the id of another row.
func TestBrokenSequencesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	at := func(level doctor.Level, breaks string, words ...string) breakage {
		return broken(level, "tables/sequence", "INSERT INTO outbox (id, routing_key, payload) VALUES (5, 'k', '{}'); "+breaks, words)
	}
	sequence := func(breaks string, words ...string) breakage { return at(doctor.Problem, breaks, words...) }
	const ascend = "INCREMENT BY 1"
	breakAndFix(t, map[string]breakage{
		"behind":          sequence("SELECT setval('outbox_id_seq', 2)", "is at 3, but the table has id 5", "setval"),
		"at its end":      sequence("SELECT setval('outbox_id_seq', 9223372036854775807)", "every INSERT fails", `setval('"public"."outbox_id_seq"'`),
		"at a small end":  sequence("ALTER SEQUENCE outbox_id_seq MAXVALUE 9 RESTART 9; SELECT nextval('outbox_id_seq')", "is at its MAXVALUE", "NO MAXVALUE"),
		"before a number": sequence("SELECT setval('outbox_id_seq', 5, false)", "is at 5"),
		"descending":      sequence("SELECT setval('outbox_id_seq', 5); ALTER SEQUENCE outbox_id_seq INCREMENT BY -1", "descends", "order is reversed", ascend),
		"below zero":      sequence("ALTER TABLE outbox ALTER id DROP IDENTITY; CREATE SEQUENCE s INCREMENT BY -1 OWNED BY outbox.id; ALTER TABLE outbox ALTER id SET DEFAULT nextval('s')", "descends", ascend),
		"cached":          at(doctor.Warning, "SELECT setval('outbox_id_seq', 5); ALTER SEQUENCE outbox_id_seq CACHE 50", "caches 50 ids", "CACHE 1;"),
		"larger steps":    passes("ALTER SEQUENCE outbox_id_seq INCREMENT BY 10"),
	})
}

// A migration of the application can break the adoption long after it. The finding says what an INSERT does now, and the
// fix is what ends it.
func TestChangesOfAnAdoptedTableAreReported(t *testing.T) {
	t.Parallel()
	const forbid = `CREATE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'append only'; END $$; `
	for name, test := range map[string]struct {
		breaks string
		fails  bool
		words  []string
		with   string // in place of NEW_NAME or COLUMN in the fix
	}{
		"a DELETE trigger": {forbid + "CREATE TRIGGER forbid BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION forbid()", true, []string{"has trigger forbid, which can prevent a DELETE", "DISABLE TRIGGER forbid;"}, ""},
		"a DELETE rule":    {"CREATE RULE keep AS ON DELETE TO events DO INSTEAD NOTHING", true, []string{"has rule keep, which can prevent a DELETE", "DISABLE RULE keep;"}, ""},
		"a foreign key": {
			"CREATE TABLE child (event bigint REFERENCES events); CREATE TABLE other (event bigint REFERENCES events ON DELETE CASCADE); ", false,
			[]string{"is the target of foreign key child_event_fkey of public.child and foreign key other_event_fkey of public.other", "ALTER TABLE public.child DROP CONSTRAINT child_event_fkey;"},
			"",
		},
		"a child table":       {"CREATE TABLE later () INHERITS (events)", false, []string{"has child tables public.later", "NO INHERIT"}, ""},
		"row security":        {"ALTER TABLE events ENABLE ROW LEVEL SECURITY; ALTER TABLE events FORCE ROW LEVEL SECURITY", false, []string{"row security of table public.events hides rows", "BYPASSRLS;"}, ""},
		"a revoked grant":     {"ALTER TABLE events OWNER TO CURRENT_USER", true, []string{"may not read and delete rows of public.events", "GRANT SELECT, DELETE ON"}, ""},
		"no primary key":      {"ALTER TABLE events DROP CONSTRAINT events_pkey", false, []string{"has no primary key", "ADD PRIMARY KEY"}, "id"},
		"a renamed key":       {"ALTER TABLE events RENAME id TO nr", true, []string{`no longer has column id of its primary key: every INSERT into it fails`, "RENAME COLUMN"}, "nr"},
		"a renamed column":    {"ALTER TABLE events RENAME topic TO subject", false, []string{"no longer has column topic: its new rows become dead letters", "RENAME COLUMN", "# or adopt it again, and change --set"}, "subject"},
		"a renamed body":      {"ALTER TABLE events RENAME body TO data", false, []string{"no longer has column body: its new rows become dead letters"}, "data"},
		"a time as a number":  {"ALTER TABLE events ALTER due TYPE bigint USING 1", false, []string{"--set available_at on table public.events", "cannot cast type bigint to timestamp"}, "-"},
		"another primary key": {"ALTER TABLE events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (id, topic)", false, []string{"has another primary key now", "--waiting none"}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t, services.SharedPostgres(t))
			owner, _ := p.Role("")
			p.exec("CREATE TABLE events (id bigserial PRIMARY KEY, topic text DEFAULT 't', body text DEFAULT '{}', due timestamptz)",
				"ALTER TABLE outbox OWNER TO "+owner, "ALTER TABLE events OWNER TO "+owner)
			r := adopt.Request{
				Outbox: p.Table, From: outbox.Table{Schema: "public", Name: "events"}, Waiting: "none",
				Set: []string{"routing_key=topic", "payload=body", "available_at=due"},
			}
			again := func() {
				_, err := adopt.Adopt(t.Context(), tabletest.Connect(t, p.URL), r)
				must(t, err)
			}
			again()
			p.examine().want(doctor.OK, doctor.Tables, "adopted")
			p.exec(test.breaks)
			const insert = "INSERT INTO events DEFAULT VALUES"
			if _, err := p.Conn.Exec(t.Context(), insert); (err != nil) != test.fails {
				t.Errorf("an INSERT ends with %v", err)
			}
			f := p.examine().want(doctor.Problem, doctor.Tables, "adopted", test.words...)
			for i, line := range f.Fix {
				f.Fix[i] = strings.NewReplacer("NEW_NAME", test.with, "(COLUMN)", "("+test.with+")").Replace(line)
			}
			switch test.with {
			case "-":
				p.exec("ALTER TABLE events ALTER due TYPE timestamptz USING NULL")
				again()
			default:
				p.fix(f)
			}
			p.exec(insert)
			p.examine().want(doctor.OK, doctor.Tables, "adopted")
		})
	}
}
