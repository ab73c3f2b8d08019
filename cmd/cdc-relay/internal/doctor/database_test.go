package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestAHealthyDatabasePasses(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	r := p.examine()
	r.wantOthersOK()
	r.want(doctor.Warning, doctor.Slot, "active", "cdc-relay run")
	r.want(doctor.Warning, doctor.Slot, "max_slot_wal_keep_size", "a limit is safe", "SET max_slot_wal_keep_size = '10GB'")
	if level := doctor.Worst(r.findings); level != doctor.Warning {
		t.Errorf("the worst is %s", level)
	}
}

func TestTheDocumentedGrantsAreEnough(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	role := p.relayRole("REPLICATION")
	app, _ := p.role("")
	p.exec("GRANT USAGE ON SCHEMA public TO "+app, messageGrant(app))
	p.AppRoles = []string{app}
	r := p.examine()
	r.wantOthersOK()
	r.want(doctor.OK, doctor.Grants, "application", "nothing else")
	p.exec("REVOKE pg_read_all_stats FROM " + role)
	r = p.examine()
	r.want(doctor.OK, doctor.Cleanup, "transactions", "hidden from role")
	p.fix(r.want(doctor.Warning, doctor.Postgres, "wal_sender_timeout", "only after that", "GRANT pg_read_all_stats"))
	p.examine().wantOthersOK()
}

// breakage is one fault on a shared server.
type breakage struct {
	breaks func(p *patient)
	level  doctor.Level
	area   doctor.Area
	check  string
	words  []string
	asIs   bool // the fix needs a person's choice
}

func brokenStreams() map[string]breakage {
	return map[string]breakage{
		"no publication": {
			func(p *patient) { p.exec("DROP PUBLICATION " + p.Publication) },
			doctor.Problem, doctor.Publication, "publication",
			[]string{"does not exist", "CREATE PUBLICATION"},
			false,
		},
		"a publication without the table": {func(p *patient) {
			p.exec("CREATE TABLE other (id int)", "ALTER PUBLICATION "+p.Publication+" SET TABLE other")
		}, doctor.Problem, doctor.Publication, "publication", []string{"leaves the table out", "ADD TABLE"}, false},
		"a publication without inserts": {
			func(p *patient) { p.exec("ALTER PUBLICATION " + p.Publication + " SET (publish = 'update')") },
			doctor.Problem, doctor.Publication, "publication",
			[]string{"leaves inserts out", "publish = 'insert'"},
			false,
		},
		"updates and deletes published": {func(p *patient) {
			p.exec("ALTER PUBLICATION " + p.Publication + " SET (publish = 'insert, update, delete')")
		}, doctor.Warning, doctor.Publication, "insert_only", []string{"deletes, updates", "publish = 'insert'"}, false},
		"the publication of another outbox": {func(p *patient) {
			p.exec("CREATE TABLE box (id int)", "CREATE TABLE box_dead_letter (id int)", "ALTER PUBLICATION "+p.Publication+" SET TABLE box")
		}, doctor.Problem, doctor.Publication, "publication", []string{
			"brings public.box instead of the table", "cdc-relay setup --slot cdc_relay_outbox --publication cdc_relay_outbox  # and run with the same names",
		}, true},
		"another outbox in the publication": {func(p *patient) {
			p.exec("CREATE TABLE box (id int)", "CREATE TABLE box_dead_letter (id int)", "ALTER PUBLICATION "+p.Publication+" ADD TABLE box")
		}, doctor.Warning, doctor.Publication, "other_tables", []string{"brings other outboxes as well", "--publication cdc_relay_outbox"}, true},
		"another table in the publication": {func(p *patient) {
			p.exec("CREATE TABLE other (id int)", "ALTER PUBLICATION "+p.Publication+" ADD TABLE other")
		}, doctor.Warning, doctor.Publication, "other_tables", []string{"1 other tables", "SET TABLE"}, false},
		"a publication for all tables": {func(p *patient) {
			p.exec("DROP PUBLICATION "+p.Publication, "CREATE PUBLICATION "+p.Publication+" FOR ALL TABLES WITH (publish = 'insert', publish_via_partition_root = true)")
		}, doctor.Warning, doctor.Publication, "other_tables", []string{"FOR ALL TABLES", "cdc-relay setup --slot"}, false},
		"no slot": {
			func(p *patient) { p.exec("SELECT pg_drop_replication_slot('" + p.Slot + "')") },
			doctor.Problem, doctor.Slot, "slot",
			[]string{"does not exist", "cdc-relay setup --slot"},
			false,
		},
		"a slot of another plugin": {func(p *patient) {
			drop := "SELECT pg_catalog.pg_drop_replication_slot('" + p.Slot + "')"
			p.exec(drop, "SELECT pg_create_physical_replication_slot('"+p.Slot+"')")
			p.t.Cleanup(func() { // it belongs to no database and would outlive this one
				_, _ = p.conn.Exec(context.Background(), drop)
			})
		}, doctor.Problem, doctor.Slot, "slot", []string{"not a pgoutput slot", "--slot NAME"}, true},
	}
}

const quotedTable = `"My Schema"."Out""Box"`

func brokenTables() map[string]breakage {
	return map[string]breakage{
		"no tables": {
			func(p *patient) {
				p.exec("DROP TABLE outbox, outbox_dead_letter, outbox_migrations CASCADE")
			},
			doctor.Problem, doctor.Tables, "table",
			[]string{"does not exist", "cdc-relay setup"},
			false,
		},
		"no dead-letter table": {
			func(p *patient) { p.exec("DROP TABLE outbox_dead_letter") },
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox_dead_letter does not exist", "cdc-relay setup"},
			false,
		},
		"no outbox": {
			func(p *patient) { p.exec("DROP TABLE outbox") },
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox does not exist", "cdc-relay setup"},
			false,
		},
		"tables without their version": {
			func(p *patient) { p.exec("DROP TABLE outbox, outbox_dead_letter") },
			doctor.Problem, doctor.Tables, "table",
			[]string{"does not exist", "cdc-relay setup"},
			false,
		},
		"a view": {
			func(p *patient) {
				p.exec("ALTER TABLE outbox_dead_letter RENAME TO messages", "ALTER INDEX outbox_dead_letter_pkey RENAME TO m1",
					"ALTER INDEX outbox_dead_letter_dead_at_idx RENAME TO m2", "ALTER INDEX outbox_dead_letter_ordering_key_idx RENAME TO m3", "CREATE VIEW outbox_dead_letter AS SELECT * FROM messages")
			},
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox_dead_letter is a view, and has to be a table", "no row can be claimed", `ALTER VIEW "public"."outbox_dead_letter" RENAME TO "outbox_dead_letter_view";`},
			false,
		},
		"a view in place of the outbox": {
			func(p *patient) {
				p.exec("ALTER TABLE outbox RENAME TO outbox_v1", "CREATE VIEW outbox AS SELECT * FROM outbox_v1")
			},
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox is a view", `ALTER TABLE "public"."outbox_v1" RENAME TO "outbox";`},
			false,
		},
		"a type": {
			func(p *patient) {
				p.exec("DROP TABLE outbox_dead_letter", "CREATE TYPE outbox_dead_letter AS (a int)")
			},
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox_dead_letter is a type, and", `ALTER TYPE "public"."outbox_dead_letter" RENAME TO "outbox_dead_letter_type";`},
			false,
		},
		"an enum": {
			func(p *patient) { p.exec("DROP TABLE outbox", "CREATE TYPE outbox AS ENUM ('a')") },
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox is a type, and", `ALTER TYPE "public"."outbox" RENAME TO "outbox_type";`},
			false,
		},
		"a domain": {
			func(p *patient) { p.exec("DROP TABLE outbox", "CREATE DOMAIN outbox AS text") },
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox is a domain, and", `ALTER DOMAIN "public"."outbox" RENAME TO "outbox_domain";`},
			false,
		},
		"an index": {
			func(p *patient) {
				p.exec("DROP TABLE outbox_dead_letter", "CREATE INDEX outbox_dead_letter ON outbox (routing_key)")
			},
			doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox_dead_letter is an index, and"},
			false,
		},
		"a missing column of dead letters": {
			func(p *patient) {
				p.exec("INSERT INTO outbox_dead_letter (id, created_at, message_id, attempts, schema_version, routing_key, failure_reason) VALUES (1, now(), gen_random_uuid(), 1, 1, 'k', 'rejected')",
					"ALTER TABLE outbox_dead_letter DROP failure_reason, DROP schema_version, DROP created_at")
			},
			doctor.Problem, doctor.Tables, "table",
			[]string{"no column created_at, schema_version, failure_reason", `ADD COLUMN "failure_reason" text NOT NULL DEFAULT 'unknown';`},
			false,
		},
		"a missing column": {
			func(p *patient) { p.exec("ALTER TABLE outbox RENAME COLUMN headers TO old_headers") },
			doctor.Problem, doctor.Tables, "table",
			[]string{"no column headers", "no message can be published", `ADD COLUMN "headers" jsonb;`, `RENAME COLUMN OLD_NAME TO "headers"`},
			false,
		},
		"no version": {
			func(p *patient) { p.exec("DROP TABLE outbox_migrations") },
			doctor.Problem, doctor.Tables, "migrations",
			[]string{"the version of the tables is unknown"},
			false,
		},
		"a newer version": {
			func(p *patient) { p.exec("UPDATE outbox_migrations SET version = 99") },
			doctor.Problem, doctor.Tables, "migrations",
			[]string{"use a newer cdc-relay"},
			true,
		},
		"an unlogged table": {
			func(p *patient) { p.exec("DROP PUBLICATION "+p.Publication, "ALTER TABLE outbox SET UNLOGGED") },
			doctor.Problem, doctor.Tables, "table",
			[]string{"UNLOGGED", "SET LOGGED"},
			false,
		},
		"an unlogged dead-letter table": {
			func(p *patient) { p.exec("ALTER TABLE outbox_dead_letter SET UNLOGGED") },
			doctor.Warning, doctor.Tables, "table",
			[]string{"public.outbox_dead_letter is UNLOGGED", "dead letters are lost in a crash", "SET LOGGED"},
			false,
		},
		"autovacuum off for the table": {
			func(p *patient) { p.exec("ALTER TABLE outbox SET (autovacuum_enabled = off)") },
			doctor.Warning, doctor.Cleanup, "autovacuum",
			[]string{"RESET (autovacuum_enabled)"},
			false,
		},
		"autovacuum of an ordinary table": {func(p *patient) {
			p.exec("ALTER TABLE outbox RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay)")
		}, doctor.Warning, doctor.Cleanup, "autovacuum", []string{"SET (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_cost_delay=0)"}, false},
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
	}
}

// brokenColumns: the table differs from its definition.
func brokenColumns() map[string]breakage {
	const column = "column"
	make := func(level doctor.Level, change string, words ...string) breakage {
		return breakage{func(p *patient) { p.exec("INSERT INTO outbox (routing_key, payload) VALUES ('k', '{}')", change) }, level, doctor.Tables, column, words, false}
	}
	const unread, fails = "the relay cannot read such rows", "an INSERT that leaves it out fails"
	return map[string]breakage{
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
	}
}

// brokenDefaults: a row that leaves the column out gets another value than the definition gives it.
func brokenDefaults() map[string]breakage {
	sets := func(level doctor.Level, column, value string, words ...string) breakage {
		words = append(words, "column "+column+" of public.outbox has the default")
		return breakage{func(p *patient) {
			p.exec("ALTER TABLE outbox ALTER " + column + " SET DEFAULT " + value)
		}, level, doctor.Tables, "column", words, level == doctor.OK}
	}
	const set, drop = "SET DEFAULT ", "DROP DEFAULT;"
	return map[string]breakage{
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
	}
}

func TestWrongDefaultsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenDefaults())
}

func TestEquivalentDefaultsPass(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.exec("CREATE FUNCTION f() RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'", "ALTER TABLE outbox ALTER message_id SET DEFAULT f(), ALTER created_at SET DEFAULT clock_timestamp(), "+
		"ALTER attempts SET DEFAULT '0', ALTER schema_version SET DEFAULT '1', ALTER possible_duplicate SET DEFAULT false, ALTER expires_at SET DEFAULT NULL")
	p.examine().wantOthersOK()
}

// brokenIndexes: an index of the migration is missing or invalid.
func brokenIndexes() map[string]breakage {
	index := func(level doctor.Level, breaks string, words ...string) breakage {
		return breakage{func(p *patient) { p.exec(strings.Split(breaks, "; ")...) }, level, doctor.Tables, "index", words, false}
	}
	table := breakage{func(p *patient) {
		p.partition()
		p.exec("DROP INDEX parts_ordering_key_id_idx")
	}, doctor.Warning, doctor.Tables, "index", []string{`CREATE INDEX ON "public"."outbox" (ordering_key, id) WHERE ordering_key IS NOT NULL;`}, false}
	return map[string]breakage{
		"no primary key":      index(doctor.Problem, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey", "no valid primary key (id)", `ADD PRIMARY KEY (id)`),
		"another primary key": index(doctor.Problem, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey; ALTER TABLE outbox ADD PRIMARY KEY (message_id)", "CREATE UNIQUE INDEX CONCURRENTLY"),
		"no primary key of the dead letters": index(doctor.Problem, "ALTER TABLE outbox_dead_letter DROP CONSTRAINT outbox_dead_letter_pkey",
			"primary key (id, message_id)", `"outbox_dead_letter" ADD PRIMARY KEY (id, message_id)`),
		"no index on available_at": index(doctor.Warning, "DROP INDEX outbox_available_at_idx", `CREATE INDEX CONCURRENTLY ON "public"."outbox" (available_at, id) WHERE available_at IS NOT NULL;`),
		"another predicate": index(doctor.Warning, "DROP INDEX outbox_coalesce_key_idx; CREATE INDEX ON outbox (ordering_key, coalesce_key, id) WHERE attempts = 0",
			"no valid index on (ordering_key, coalesce_key, id)"),
		"an invalid index":    index(doctor.Warning, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_ordering_key_idx'::regclass", "REINDEX INDEX CONCURRENTLY public.outbox_ordering_key_idx;"),
		"a partitioned table": table,
		"an index that does it": {func(p *patient) {
			p.exec("DROP INDEX outbox_available_at_idx", "CREATE INDEX ON outbox (available_at, id, attempts)")
		}, doctor.OK, doctor.Tables, "table", nil, true},
	}
}

// brokenSequences: an INSERT gets no id, or the id of another row.
func brokenSequences() map[string]breakage {
	at := func(level doctor.Level, breaks string, words ...string) breakage {
		return breakage{func(p *patient) {
			p.exec("INSERT INTO outbox (id, routing_key, payload) VALUES (5, 'k', '{}')", breaks)
		}, level, doctor.Tables, "sequence", words, false}
	}
	sequence := func(breaks string, words ...string) breakage { return at(doctor.Problem, breaks, words...) }
	const ascend = "INCREMENT BY 1"
	return map[string]breakage{
		"behind":          sequence("SELECT setval('outbox_id_seq', 2)", "is at 3, but the table has id 5", "setval"),
		"at its end":      sequence("SELECT setval('outbox_id_seq', 9223372036854775807)", "every INSERT fails", "setval('public.outbox_id_seq'"),
		"at a small end":  sequence("ALTER SEQUENCE outbox_id_seq MAXVALUE 9 RESTART 9; SELECT nextval('outbox_id_seq')", "is at its MAXVALUE", "NO MAXVALUE"),
		"before a number": sequence("SELECT setval('outbox_id_seq', 5, false)", "is at 5"),
		"descending":      sequence("SELECT setval('outbox_id_seq', 5); ALTER SEQUENCE outbox_id_seq INCREMENT BY -1", "descends", "order is reversed", ascend),
		"below zero":      sequence("ALTER TABLE outbox ALTER id DROP IDENTITY; CREATE SEQUENCE s INCREMENT BY -1 OWNED BY outbox.id; ALTER TABLE outbox ALTER id SET DEFAULT nextval('s')", "descends", ascend),
		"cached":          at(doctor.Warning, "SELECT setval('outbox_id_seq', 5); ALTER SEQUENCE outbox_id_seq CACHE 50", "caches 50 ids", "CACHE 1;"),
		"larger steps": {func(p *patient) {
			p.exec("ALTER SEQUENCE outbox_id_seq INCREMENT BY 10")
		}, doctor.OK, doctor.Tables, "table", nil, true},
	}
}

func TestBrokenSequencesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenSequences())
}

func TestLimitsOfTheRelaysRoleAreReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	role := p.relayRole("REPLICATION CONNECTION LIMIT 6")
	p.exec("ALTER ROLE "+role+" SET statement_timeout = '900ms'", "ALTER ROLE "+role+" SET idle_session_timeout = '10s'")
	r := p.examine()
	p.fix(r.want(doctor.Warning, doctor.Postgres, "connections", "may open 6 connections", "CONNECTION LIMIT -1"))
	p.fix(r.want(doctor.Warning, doctor.Postgres, "statement_timeout", "900ms", "SET statement_timeout = 0"))
	p.fix(r.want(doctor.Warning, doctor.Postgres, "idle_session_timeout", "10s", "SET idle_session_timeout = 0"))
	p.examine().wantOthersOK()
}

// asAdministrator examines the role without its login, as --relay-role does.
func (p *patient) asAdministrator(role string) {
	p.as(p.url)
	p.Administrator = true
	inner := p.Connect
	p.Connect = func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
		with := map[string]string{"role": role}
		maps.Copy(with, parameters)
		return inner(ctx, with)
	}
}

func TestAnAdministratorCanExamineTheRelaysLogin(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		breaks string
		level  doctor.Level
		check  string
		words  []string
	}{
		"no login":         {"ALTER ROLE %s NOLOGIN", doctor.Problem, "login", []string{"may not log in", "LOGIN;"}},
		"no database":      {"REVOKE CONNECT ON DATABASE %[2]s FROM PUBLIC", doctor.Problem, "login", []string{"may not connect to database", "GRANT CONNECT ON DATABASE"}},
		"an old password":  {"ALTER ROLE %s VALID UNTIL '2000-01-01'", doctor.Problem, "login", []string{"the password of role", "expired", "VALID UNTIL 'infinity'"}},
		"short statements": {"ALTER ROLE %s SET statement_timeout = '100ms'", doctor.Warning, "statement_timeout", []string{"is 100ms", "SET statement_timeout = 0"}},
		"of the database":  {"ALTER DATABASE %[2]s SET statement_timeout = 100", doctor.Warning, "statement_timeout", []string{"is 100ms"}},
		"short sessions":   {"ALTER ROLE %s SET idle_session_timeout = '1s'", doctor.Warning, "idle_session_timeout", []string{"is 1s", "SET idle_session_timeout = 0"}},
		"read-only":        {"ALTER ROLE %s IN DATABASE %s SET default_transaction_read_only = true", doctor.Warning, "read_only", []string{"SET default_transaction_read_only = off"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t, services.SharedPostgres(t))
			role := p.relayRole("REPLICATION")
			p.asAdministrator(role)
			p.examine().wantOthersOK()
			p.exec(fmt.Sprintf(test.breaks+"%.0[1]s%.0[2]s", role, outbox.QuoteIdentifier(p.conn.Config().Database)))
			p.fix(p.examine().want(test.level, doctor.Postgres, test.check, test.words...))
			p.examine().wantOthersOK()
		})
	}
}

func TestMissingIndexesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenIndexes())
}

// brokenDeletes: rows cannot be deleted, moved or inserted.
func brokenDeletes() map[string]breakage {
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
	return map[string]breakage{
		"a DELETE that is suppressed": trigger(doctor.Problem, "BEFORE DELETE ON outbox", "RETURN NULL", "returns NULL", aside, disable),
		"a DELETE that returns NEW":   trigger(doctor.Problem, "BEFORE DELETE ON outbox", "RETURN NEW", "before each DELETE and returns NEW, which is null there", aside, disable),
		"a DELETE that may return NULL": trigger(doctor.Problem, "BEFORE DELETE ON outbox",
			"IF now() < 'epoch' THEN RETURN NULL; END IF; RETURN OLD", "can return NULL", aside, disable),
		"a trigger for all events": trigger(doctor.Warning, "BEFORE INSERT OR UPDATE OR DELETE ON outbox",
			"IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW", "runs in statements of the relay", disable),
		"a comment that says RETURN NULL": trigger(doctor.Warning, "BEFORE DELETE ON outbox",
			"/* not RETURN NULL */ RETURN OLD -- as RETURN NULL would lose it\n", "runs in statements of the relay", disable),
		"an INSERT that is suppressed": trigger(doctor.Problem, "BEFORE INSERT ON outbox", "RETURN NULL", "before each INSERT and returns NULL", "requeued dead letters are lost", disable),
		"an INSERT that returns OLD":   trigger(doctor.Problem, "BEFORE INSERT ON outbox", "RETURN OLD", "returns OLD, which is null there", disable),
		"an INSERT that is filtered": trigger(doctor.Warning, "BEFORE INSERT ON outbox",
			"IF NEW.routing_key = '' THEN RETURN NULL; END IF; RETURN NEW", "can return NULL: then messages of applications", disable),
		"a dead letter that stays":  trigger(doctor.Problem, "BEFORE DELETE ON outbox_dead_letter", "RETURN NEW", "cannot be requeued or purged", disable),
		"an UPDATE that is watched": trigger(doctor.Warning, "AFTER UPDATE ON outbox", "RETURN NULL", "runs in statements of the relay", aside, disable),
		"a DELETE that always fails": trigger(doctor.Problem, "BEFORE DELETE ON outbox", "RAISE EXCEPTION 'append only'",
			"always fails: its function has no RETURN", aside, disable),
		"an INSERT that always fails": trigger(doctor.Problem, "AFTER INSERT ON outbox", "RAISE EXCEPTION 'closed'", "no message can be inserted", disable),
		"a dead letter that always fails": trigger(doctor.Problem, "BEFORE INSERT ON outbox_dead_letter", "RAISE EXCEPTION 'no'",
			"always fails", "no message can become a dead letter", disable),
		"a DELETE that fails at times": {func(p *patient) {
			p.exec("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
				"CREATE TRIGGER guard BEFORE DELETE ON outbox FOR EACH ROW WHEN (OLD.routing_key = 'x') EXECUTE FUNCTION f()")
		}, doctor.Warning, doctor.Tables, "triggers", []string{"If it fails", aside, disable}, false},
		"a RETURN in parentheses": trigger(doctor.Warning, "BEFORE DELETE ON outbox", "RETURN(OLD)", "runs in statements of the relay", disable),
		"dead letters suppressed": trigger(doctor.Problem, "BEFORE INSERT ON outbox_dead_letter", "return  null", "a dead letter that it suppresses is lost", disable),
		"an application's trigger": {func(p *patient) {
			p.exec("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$", "CREATE TRIGGER fill BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION f()")
		}, doctor.OK, doctor.Tables, "table", nil, true},
		"a rule": {
			func(p *patient) { p.exec("CREATE RULE keep AS ON DELETE TO outbox DO INSTEAD NOTHING") },
			doctor.Problem, doctor.Tables, "triggers",
			[]string{"rule keep rewrites statements", `DISABLE RULE "keep"`},
			false,
		},
		"a foreign key":               reference(doctor.Problem, "outbox", "", "foreign key audit_message_fkey of public.audit", "is published, cannot be deleted", "DROP CONSTRAINT"),
		"a foreign key that cascades": reference(doctor.Warning, "outbox", "ON DELETE CASCADE", "each message that is published changes rows there"),
		"a foreign key to the dead":   reference(doctor.Warning, "outbox_dead_letter", "", "dead letters cannot be purged"),
		"a constraint of attempts": {
			func(p *patient) {
				p.exec("ALTER TABLE outbox ADD CONSTRAINT few CHECK (attempts < 3 AND routing_key <> '')")
			},
			doctor.Warning, doctor.Tables, "constraints",
			[]string{"constraint few of public.outbox", "becomes a dead letter", `DROP CONSTRAINT "few"`},
			false,
		},
		"a constraint of dead letters": {
			func(p *patient) {
				p.exec("ALTER TABLE outbox_dead_letter ADD CONSTRAINT short CHECK (length(routing_key) < 9)")
			},
			doctor.Warning, doctor.Tables, "constraints",
			[]string{"cannot be moved there, and its row is set aside"},
			false,
		},
		"a foreign key of dead letters": {
			func(p *patient) {
				p.exec("CREATE TABLE topics (name text PRIMARY KEY)", "ALTER TABLE outbox_dead_letter ADD CONSTRAINT known FOREIGN KEY (routing_key) REFERENCES topics (name)")
			},
			doctor.Warning, doctor.Tables, "constraints",
			[]string{"constraint known of public.outbox_dead_letter", "cannot be moved there, and its row is set aside", `DROP CONSTRAINT "known"`},
			false,
		},
		"a unique constraint of dead letters": {
			func(p *patient) {
				p.exec("ALTER TABLE outbox_dead_letter ADD CONSTRAINT once UNIQUE (message_id)")
			},
			doctor.Warning, doctor.Tables, "constraints",
			[]string{"constraint once of public.outbox_dead_letter", "cannot be moved there, and its row is set aside", `DROP CONSTRAINT "once"`},
			false,
		},
		"a unique index of dead letters": {
			func(p *patient) { p.exec("CREATE UNIQUE INDEX once ON outbox_dead_letter (lower(routing_key))") },
			doctor.Warning, doctor.Tables, "constraints",
			[]string{"unique index public.once of public.outbox_dead_letter", "cannot be moved there, and its row is set aside", "DROP INDEX public.once;"},
			false,
		},
		"unique indexes with the key": {
			func(p *patient) {
				p.exec("CREATE UNIQUE INDEX ON outbox_dead_letter (message_id, id)", "CREATE UNIQUE INDEX ON outbox (id, available_at)")
			},
			doctor.OK, doctor.Tables, "table", nil, true,
		},
		"a unique index of the relay's columns": {
			func(p *patient) { p.exec("CREATE UNIQUE INDEX once ON outbox (available_at)") },
			doctor.Warning, doctor.Tables, "constraints",
			[]string{"unique index public.once", "becomes a dead letter"},
			false,
		},
		"a constraint of the application": {
			func(p *patient) { p.exec("ALTER TABLE outbox ADD CHECK (routing_key <> '')") },
			doctor.OK, doctor.Tables, "table", nil, true,
		},
		"row-level security": {
			func(p *patient) { p.exec("ALTER TABLE outbox ENABLE ROW LEVEL SECURITY") },
			doctor.Warning, doctor.Tables, "row_security",
			[]string{"has no policy for INSERT", "rejects every row"},
			false,
		},
		"rows for a newer relay": {
			func(p *patient) {
				p.exec("INSERT INTO outbox (routing_key, payload, schema_version) VALUES ('k', '1', 3), ('k', '1', 2), ('k', '1', 1)")
			},
			doctor.Warning, doctor.Tables, "schema_version",
			[]string{"2 rows of those examined", "above 1, up to 3", "leaves them in the table"},
			false,
		},
		"rows that have expired": {
			func(p *patient) {
				p.exec("INSERT INTO outbox (routing_key, payload, expires_at) VALUES ('k', '1', now()), ('k', '1', '-infinity'), ('k', '1', now() + interval '1 h'), ('k', '1', NULL)")
			},
			doctor.Warning, doctor.Tables, "expires_at",
			[]string{"2 rows of those examined have expired", "SET expires_at = NULL"},
			false,
		},
		"rows from the future": {
			func(p *patient) {
				p.exec("INSERT INTO outbox (routing_key, payload, created_at) VALUES ('k', '1', now() + interval '300 years'), ('k', '1', 'infinity'), ('k', '1', now())")
			},
			doctor.Warning, doctor.Tables, "created_at",
			[]string{"2 rows of those examined", "up to infinity", "they wait until then"},
			false,
		},
	}
}

func TestBrokenColumnsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenColumns())
}

func TestObstaclesToDeletesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenDeletes())
}

// The check's own session is read-only in any case, so it uses another one.
func TestAReadOnlyByDefaultRoleIsReported(t *testing.T) {
	for _, poll := range []bool{false, true} {
		p := onDatabase(t, services.SharedPostgres(t).Database(t))
		p.Poll = poll
		p.setup()
		role := p.relayRole("REPLICATION")
		p.examine().wantOthersOK()
		p.exec("ALTER ROLE " + role + " SET default_transaction_read_only = on")
		p.fix(p.examine().want(doctor.Warning, doctor.Postgres, "read_only", "cannot insert", "disk is almost full", "SET default_transaction_read_only = off"))
		p.examine().wantOthersOK()
	}
}

// The role of commands.md#roles may do less than a relay.
func TestAnOperatorNeedsNoPrivilegesOfTheRelay(t *testing.T) {
	p := onDatabase(t, services.SharedPostgres(t).Database(t))
	p.setup()
	name, login := p.role("")
	p.exec("GRANT USAGE ON SCHEMA public TO "+name, "GRANT SELECT ON outbox, outbox_dead_letter, outbox_migrations TO "+name)
	p.as(login)
	p.examine().want(doctor.Problem, doctor.Grants, "relay", "may not")
	p.Operator = true
	p.examine().wantOthersOK()
}

func TestAWrongClockIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	for off, words := range map[time.Duration]string{3 * time.Minute: "3m behind this machine's", -2 * time.Hour: "2h0m ahead of this machine's"} {
		p.SetClock(func() time.Time { return time.Now().Add(off) })
		p.examine().want(doctor.Warning, doctor.Postgres, "clock", words, "Messages are due by the clock of Postgres", "timedatectl")
	}
}

func TestBrokenStreamsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenStreams())
}

func TestBrokenTablesAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenTables())
}

// breakAndFix examines each breakage, runs the fix, and examines it again.
func breakAndFix(t *testing.T, set map[string]breakage) {
	for name, test := range set {
		t.Run(name, func(t *testing.T) {
			p := healthy(t, services.SharedPostgres(t))
			test.breaks(p)
			found := p.examine().want(test.level, test.area, test.check, test.words...)
			if test.asIs {
				return
			}
			p.fix(found)
			p.setup() // what the first fix made possible
			for _, f := range p.examine().findings {
				if f.Area == test.area && f.Name == test.check && f.Level != doctor.OK {
					t.Errorf("not repaired: %s\n%s", f.Message, strings.Join(f.Fix, "\n"))
				}
			}
		})
	}
}

func TestMissingGrantsOfTheRelayAreReported(t *testing.T) {
	t.Parallel()
	for _, revoke := range []struct{ statement, check, words string }{
		{"REVOKE SELECT, DELETE ON outbox FROM ", "relay", "GRANT SELECT, DELETE ON \"public\".\"outbox\" TO"},
		{"REVOKE INSERT ON outbox_dead_letter FROM ", "relay", "GRANT INSERT ON"},
		{"REVOKE SELECT ON SEQUENCE outbox_id_seq FROM ", "sequence", `GRANT SELECT ON SEQUENCE "public"."outbox_id_seq" TO`},
		{"REVOKE USAGE ON SCHEMA public FROM PUBLIC, ", "schema", "GRANT USAGE ON SCHEMA \"public\" TO"},
	} {
		t.Run(revoke.check, func(t *testing.T) {
			p := healthy(t, services.SharedPostgres(t))
			p.exec(revoke.statement + p.relayRole("REPLICATION"))
			p.fix(p.examine().want(doctor.Problem, doctor.Grants, revoke.check, revoke.words))
			p.examine().wantOthersOK()
		})
	}
}

func TestAnUnreadableTableVersionIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.exec("REVOKE SELECT ON outbox_migrations FROM " + p.relayRole("REPLICATION"))
	p.fix(p.examine().want(doctor.Problem, doctor.Tables, "migrations", "may not read", `GRANT SELECT ON "public"."outbox_migrations" TO`))
	p.examine().wantOthersOK()
}

func TestARoleWithoutReplicationIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.relayRole("")
	p.fix(p.examine().want(doctor.Problem, doctor.Postgres, "replication", "may not replicate", "ALTER ROLE", "--mode poll"))
	p.examine().wantOthersOK()
}

func messageGrant(role string) string {
	return "GRANT INSERT (" + strings.Join(schema.Insert(), ", ") + ") ON outbox TO " + role
}

func TestRowLevelSecurityIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.relayRole("REPLICATION")
	app, _ := p.role("")
	p.AppRoles = []string{app}
	p.exec("GRANT USAGE ON SCHEMA public TO "+app, messageGrant(app), "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY")
	r := p.examine()
	p.fix(r.want(doctor.Problem, doctor.Grants, "relay", "hides rows", "BYPASSRLS"))
	p.fix(r.want(doctor.Problem, doctor.Grants, "application", "row-level security", "CREATE POLICY"))
	p.examine().wantOthersOK()
}

func TestTheApplicationsRoleIsExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.AppRoles = []string{"No such role"}
	p.examine().want(doctor.Problem, doctor.Grants, "application", "does not exist", `CREATE ROLE "No such role" LOGIN`)

	app, _ := p.role("")
	p.AppRoles = []string{app}
	p.exec("REVOKE ALL ON SCHEMA public FROM PUBLIC")
	f := p.examine().want(doctor.Problem, doctor.Grants, "application", "may not use schema public", "INSERT into public.outbox")
	p.fix(f)
	p.examine().want(doctor.OK, doctor.Grants, "application", "may INSERT, and nothing else")

	p.exec("GRANT DELETE ON outbox TO " + app)
	p.fix(p.examine().want(doctor.Warning, doctor.Grants, "application", "may DELETE besides INSERT", "REVOKE DELETE"))
	p.exec("REVOKE INSERT ON outbox FROM "+app, "GRANT INSERT (routing_key, payload) ON outbox TO "+app)
	p.examine().want(doctor.OK, doctor.Grants, "application")
}

// An identity column needs no grant for its sequence, a default of nextval does.
func TestTheApplicationsSequencesAreExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	app, _ := p.role("")
	p.AppRoles = []string{app}
	p.exec("GRANT USAGE ON SCHEMA public TO "+app, messageGrant(app))
	p.examine().wantOthersOK()
	p.exec("ALTER TABLE outbox ALTER id DROP IDENTITY", `CREATE SEQUENCE "S"`, `ALTER TABLE outbox ALTER id SET DEFAULT nextval('"S"')`)
	p.fix(p.examine().want(doctor.Problem, doctor.Grants, "application", `may not use sequence public."S"`, `GRANT USAGE ON SEQUENCE public."S" TO`))
	p.examine().wantOthersOK()
	p.exec("SET ROLE "+app, "INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')", "RESET ROLE")
}

// The finding says which ORMs fail, and its grant is what they need.
func TestTheApplicationsColumnGrantsAreExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	app, _ := p.role("")
	p.AppRoles = []string{app}
	p.exec("GRANT USAGE ON SCHEMA public TO "+app, messageGrant(app))
	insert := "SET ROLE " + app + "; INSERT INTO outbox (routing_key, payload) VALUES ('k', '1') RETURNING id, message_id"
	if _, err := p.conn.Exec(t.Context(), insert); err == nil {
		t.Fatal("it can already read the id")
	}
	p.exec("RESET ROLE")
	p.examine().want(doctor.OK, doctor.Grants, "application", "may INSERT, and nothing else")
	f := p.examine().want(doctor.OK, doctor.Grants, "returning", "may not read id,", "SQLAlchemy", "JDBC", "GRANT SELECT (id, message_id) ON")
	_, grant, _ := strings.Cut(f.Message, "allow it: ")
	p.exec("GRANT SELECT (id) ON outbox TO " + app)
	p.examine().want(doctor.OK, doctor.Grants, "returning", "may not read message_id,")
	p.exec(grant, insert, "RESET ROLE")
	p.examine().want(doctor.OK, doctor.Grants, "returning", "RETURNING id, message_id works", "GRANT USAGE ON SEQUENCE")
	p.examine().want(doctor.OK, doctor.Grants, "application", "may INSERT and read id, message_id")
	p.exec("GRANT USAGE ON SEQUENCE outbox_id_seq TO "+app, "GRANT INSERT (id) ON outbox TO "+app)
	p.examine().want(doctor.Warning, doctor.Grants, "application", "may INSERT into id,", "REVOKE INSERT ON")
	p.exec("SET ROLE "+app, "INSERT INTO outbox (id, routing_key, payload) VALUES (nextval('outbox_id_seq'), 'k', '1') RETURNING id", "RESET ROLE")

	p.exec("REVOKE ALL ON outbox FROM " + app)
	p.examine().want(doctor.Problem, doctor.Grants, "application", "may not INSERT")
	if _, err := migrations.MakeFunctions(t.Context(), p.conn, p.Table); err != nil {
		t.Fatal(err)
	}
	if _, err := grants.Make(t.Context(), p.conn, app, grants.Calls(p.Table)); err != nil {
		t.Fatal(err)
	}
	p.examine().want(doctor.OK, doctor.Grants, "application", "may call public.outbox_enqueue")
	p.exec(messageGrant(app), grant)
	p.examine().want(doctor.OK, doctor.Grants, "application", "may INSERT, read id, message_id and call public.outbox_cancel")
}

// Each role has findings of its own.
func TestSeveralApplicationsAreExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	good, _ := p.role("")
	bad, _ := p.role("")
	p.AppRoles = []string{good, bad, "No such role"}
	p.exec("GRANT USAGE ON SCHEMA public TO "+good+", "+bad, messageGrant(good), messageGrant(bad), "GRANT DELETE ON outbox TO "+bad)
	of := func(role string) report {
		r := p.examine()
		r.want(doctor.OK, doctor.Grants, "writers") // the finding about the role says it already
		r.findings = slices.DeleteFunc(r.findings, func(f doctor.Finding) bool { return f.Subject != role })
		return r
	}
	of(good).want(doctor.OK, doctor.Grants, "application", "may INSERT, and nothing else")
	of("No such role").want(doctor.Problem, doctor.Grants, "application", "does not exist")
	p.fix(of(bad).want(doctor.Warning, doctor.Grants, "application", "may DELETE besides INSERT"))
	of(bad).want(doctor.OK, doctor.Grants, "application", "may INSERT, and nothing else")
}

func TestDoublySerialisedPayloadsAreReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('k', '{"a": "{}"}'), ('k', '"text"'), ('k', '1')`, `INSERT INTO outbox (routing_key, payload_bytes) VALUES ('k', '{')`,
		`INSERT INTO outbox (routing_key, payload) VALUES ('k', '"a\u0000b"'), ('k', '"[note] text"'), ('k', '"{name} text"')`)
	p.examine().wantOthersOK()
	p.exec(`INSERT INTO outbox (routing_key, payload) VALUES ('k', '"{\"a\": 1}"'), ('k', '" [1]"'), ('k', '"{\n}\n"')`)
	p.examine().want(doctor.Warning, doctor.Tables, "payload", "3 payloads are JSON text inside a JSON string", "give the client library an object")
}

func TestASlotOfAnotherDatabaseIsReported(t *testing.T) {
	server := services.SharedPostgres(t)
	other, p := healthy(t, server), healthy(t, server)
	p.Slot = other.Slot
	p.examine().want(doctor.Problem, doctor.Slot, "slot", "belongs to another database", "cdc-relay setup --slot NAME")
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
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "partition_root", "names partitions", "publish_via_partition_root = true"))
	r := p.examine()
	r.want(doctor.OK, doctor.Publication, "publication")
	r.want(doctor.OK, doctor.Tables, "table")
	r.want(doctor.OK, doctor.Cleanup, "dead_rows")
}

// brokenPartitions are faults of a partition that the partitioned table does not have.
func brokenPartitions() map[string]breakage {
	breaks := func(statements ...string) func(*patient) {
		return func(p *patient) {
			p.partition()
			p.exec(statements...)
		}
	}
	return map[string]breakage{
		"a trigger": {
			breaks("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$", "CREATE TRIGGER guard BEFORE DELETE ON part1 FOR EACH ROW EXECUTE FUNCTION f()"),
			doctor.Problem, doctor.Tables, "triggers",
			[]string{"trigger guard of public.part1 runs before each DELETE", `ALTER TABLE "public"."part1" DISABLE TRIGGER`},
			false,
		},
		"no partition": {
			breaks("DROP TABLE part1"), doctor.Problem, doctor.Tables, "table",
			[]string{"public.outbox has no partition: every INSERT fails", `CREATE TABLE "public"."outbox_default" PARTITION OF "public"."outbox" DEFAULT;`},
			false,
		},
		"an unlogged partition": {
			breaks("ALTER TABLE part1 SET UNLOGGED"), doctor.Problem, doctor.Tables, "table",
			[]string{"table public.part1 is UNLOGGED", `ALTER TABLE "public"."part1" SET LOGGED`},
			false,
		},
		"a constraint": {
			breaks("ALTER TABLE part1 ADD CONSTRAINT few CHECK (attempts < 3)"), doctor.Warning, doctor.Tables, "constraints",
			[]string{"constraint few of public.part1", `ALTER TABLE "public"."part1" DROP CONSTRAINT "few";`},
			false,
		},
		"a foreign key": {
			breaks("CREATE TABLE audit (message bigint REFERENCES part1 (id))"), doctor.Problem, doctor.Tables, "references",
			[]string{"refers to public.part1", "cannot be deleted"},
			false,
		},
	}
}

func TestBrokenPartitionsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	breakAndFix(t, brokenPartitions())
}

func TestRowFiltersAndColumnListsAreReported(t *testing.T) {
	server := services.SharedPostgres(t)
	if server.Major() < 15 {
		t.Skip("Postgres 14 has neither row filters nor column lists")
	}
	p := healthy(t, server)
	p.exec("ALTER PUBLICATION " + p.Publication + " SET TABLE outbox WHERE (id > 5)")
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "row_filter", "(id > 5)", "SET TABLE"))
	p.examine().wantOthersOK()
	p.exec("CREATE TABLE other (id int)", "ALTER PUBLICATION "+p.Publication+" SET TABLE other, outbox (id, routing_key, payload)")
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "column_list", "DROP TABLE", "ADD TABLE"))
	p.examine().want(doctor.Warning, doctor.Publication, "other_tables", "1 other tables")
	p.examine().wantOthersOK("other_tables")
	p.exec("ALTER PUBLICATION " + p.Publication + " SET TABLE outbox (id, routing_key, payload)")
	p.fix(p.examine().want(doctor.Problem, doctor.Publication, "column_list", "id, routing_key, payload", "SET TABLE"))
	p.examine().wantOthersOK()
}

func TestTheFixOfAShardKeepsItsRowFilter(t *testing.T) {
	server := services.SharedPostgres(t)
	if server.Major() < 15 {
		t.Skip("Postgres 14 has no row filters")
	}
	p := onDatabase(t, server.Database(t))
	p.Shard = outbox.Shard{Index: 0, Of: 2}
	p.Slot, p.Publication = p.Slot+p.Shard.NameSuffix(), p.Publication+p.Shard.NameSuffix()
	p.setup()
	p.examine().wantOthersOK()
	p.exec("CREATE TABLE other (id int)", "ALTER PUBLICATION "+p.Publication+" ADD TABLE other")
	p.fix(p.examine().want(doctor.Warning, doctor.Publication, "other_tables", "SET TABLE"))
	p.examine().wantOthersOK()
}

func TestManagedServicesAreNamed(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t, "wal_level=replica")
	p := healthyTables(t, server)
	for role, words := range map[string][]string{
		"rds_superuser":     {"Amazon RDS", "rds.logical_replication", "GRANT rds_replication TO"},
		"cloudsqlsuperuser": {"Cloud SQL", "cloudsql.logical_decoding", "WITH REPLICATION"},
		"azure_pg_admin":    {"Azure", "az postgres flexible-server parameter set", "WITH REPLICATION"},
		"supabase_admin":    {"Supabase", "wal_level=logical", "REPLICATION"},
		"neon_superuser":    {"Neon", "enable_logical_replication", "REPLICATION"},
	} {
		t.Run(role, func(t *testing.T) {
			p.t = t
			p.exec("CREATE ROLE " + role)
			defer p.exec("DROP ROLE " + role)
			p.relayRole("")
			r := p.examine()
			r.want(doctor.OK, doctor.Postgres, "reachable", words[0])
			r.want(doctor.Problem, doctor.Postgres, "wal_level", "wal_level is replica", words[1])
			r.want(doctor.Problem, doctor.Postgres, "replication", words[2])
		})
	}
	t.Run("rds_replication", func(t *testing.T) {
		p.t = t
		p.exec("CREATE ROLE rds_superuser", "CREATE ROLE rds_replication")
		defer p.exec("DROP ROLE rds_superuser", "DROP ROLE rds_replication")
		p.exec("GRANT rds_replication TO " + p.relayRole(""))
		// No role can replicate here, so the connection fails; the check first relied on the catalog.
		p.examine().want(doctor.Problem, doctor.Postgres, "replication", "GRANT rds_replication TO")
	})
}

// healthyTables is for a server without logical replication.
func healthyTables(t *testing.T, server *services.Postgres) *patient {
	t.Helper()
	p := onDatabase(t, server.Database(t))
	p.Poll = true
	p.setup()
	p.Poll = false
	return p
}

func TestUnreachablePostgresIsReported(t *testing.T) {
	p := onDatabase(t, services.Database(t))
	p.withBroker(services.SharedRabbitMQ(t))
	p.Connect = func(context.Context, map[string]string) (*pgx.Conn, error) { return nil, unreachable{} }
	r := p.examine()
	r.want(doctor.Problem, doctor.Postgres, "reachable", "nobody there", "look whether it runs")
	r.want(doctor.OK, doctor.RabbitMQ, "reachable")
	r.want(doctor.Warning, doctor.Routing, "waiting", "cannot be read")
	if doctor.Worst(r.findings) != doctor.Problem {
		t.Error("the worst level is not a problem")
	}
}

type unreachable struct{}

func (unreachable) Error() string { return "nobody there" }
func (unreachable) Hint() string  { return "look whether it runs" }

func TestSessionsOfTheExaminationAreReadOnly(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	inner := p.Connect
	p.Connect = func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
		conn, err := inner(ctx, parameters)
		if err != nil || parameters["replication"] != "" || len(parameters) == 0 { // the last one only runs SHOW
			return conn, err
		}
		var pgErr interface{ SQLState() string }
		if _, err := conn.Exec(ctx, "CREATE TABLE written ()"); !errors.As(err, &pgErr) || pgErr.SQLState() != "25006" {
			t.Errorf("the session can write: %v", err)
		}
		return conn, nil
	}
	p.examine().wantOthersOK()
}

// throughPort replaces host and port of a URL, for connections through a pooler or proxy.
func throughPort(t *testing.T, address, hostport string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = hostport
	return strings.TrimSpace(u.String())
}
