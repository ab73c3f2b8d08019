package doctor_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// The relay logs in, or an administrator examines its role.
func TestFaultsOfTheRelaysRoleAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	fault := func(administrator bool) func(doctor.Level, doctor.Area, string, string, ...string) breakage {
		return func(level doctor.Level, area doctor.Area, check, statement string, words ...string) breakage {
			return broken(level, string(area)+"/"+check, statement, words).after(func(p *patient) {
				p.named = p.relayRole("REPLICATION")
				if administrator {
					p.Administrator = true
					p.asRole(p.named)
				}
				p.examine().wantOthersOK()
			})
		}
	}
	login, role := fault(false), fault(true)
	const problem, warning, postgres, grants = doctor.Problem, doctor.Warning, doctor.Postgres, doctor.Grants
	breakAndFix(t, map[string]breakage{
		"few connections": login(warning, postgres, "connections", "ALTER ROLE $ROLE CONNECTION LIMIT 6",
			"may open 6 connections", "CONNECTION LIMIT -1"),
		"short statements": login(warning, postgres, "statement_timeout", "ALTER ROLE $ROLE SET statement_timeout = '900ms'",
			"900ms", "SET statement_timeout = 0"),
		"short sessions": login(warning, postgres, "idle_session_timeout", "ALTER ROLE $ROLE SET idle_session_timeout = '10s'",
			"10s", "SET idle_session_timeout = 0"),
		"read-only by default": login(warning, postgres, "read_only", "ALTER ROLE $ROLE SET default_transaction_read_only = on",
			"cannot insert", "disk is almost full", "SET default_transaction_read_only = off"),
		"hidden transactions": login(doctor.OK, doctor.Cleanup, "transactions", "REVOKE pg_read_all_stats FROM $ROLE", "hidden from role"),
		"no replication": login(problem, postgres, "replication", "ALTER ROLE $ROLE NOREPLICATION",
			"may not replicate", "ALTER ROLE", "--mode poll"),
		"no grants on the outbox": login(problem, grants, "relay", "REVOKE SELECT, DELETE ON outbox FROM $ROLE",
			`GRANT SELECT, DELETE ON "public"."outbox" TO`),
		"no grant on the dead letters": login(problem, grants, "relay", "REVOKE INSERT ON outbox_dead_letter FROM $ROLE", "GRANT INSERT ON"),
		"no grant on the sequence": login(problem, grants, "sequence", "REVOKE SELECT ON SEQUENCE outbox_id_seq FROM $ROLE",
			`GRANT SELECT ON SEQUENCE "public"."outbox_id_seq" TO`),
		"no grant on the schema": login(problem, grants, "schema", "REVOKE USAGE ON SCHEMA public FROM PUBLIC, $ROLE", `GRANT USAGE ON SCHEMA "public" TO`),
		"no grant on the version": login(problem, doctor.Tables, "migrations", "REVOKE SELECT ON outbox_migrations FROM $ROLE",
			"may not read", `GRANT SELECT, UPDATE ON "public"."outbox_migrations" TO`),
		"it may not tell what it does": login(warning, grants, "relay", "REVOKE DELETE ON outbox_relay FROM $ROLE",
			"other programs do not see", "GRANT SELECT, INSERT, UPDATE, DELETE ON"),
		"hidden rows": login(problem, grants, "relay", "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "hides rows", "BYPASSRLS"),
		"no login":    role(problem, postgres, "login", "ALTER ROLE $ROLE NOLOGIN", "may not log in", "LOGIN;"),
		"no database": role(problem, postgres, "login", "REVOKE CONNECT ON DATABASE $DATABASE FROM PUBLIC",
			"may not connect to this database", "GRANT CONNECT ON DATABASE"),
		"an old password": role(problem, postgres, "login", "ALTER ROLE $ROLE VALID UNTIL '2000-01-01'",
			"cannot log in with a password", "expired", "VALID UNTIL 'infinity'"),
		"short statements of a role": role(warning, postgres, "statement_timeout", "ALTER ROLE $ROLE SET statement_timeout = '100ms'",
			"is 100ms", "SET statement_timeout = 0"),
		"short statements of the database": role(warning, postgres, "statement_timeout", "ALTER DATABASE $DATABASE SET statement_timeout = 100", "is 100ms"),
		"short sessions of a role": role(warning, postgres, "idle_session_timeout", "ALTER ROLE $ROLE SET idle_session_timeout = '1s'",
			"is 1s", "SET idle_session_timeout = 0"),
		"a read-only role": role(warning, postgres, "read_only", "ALTER ROLE $ROLE IN DATABASE $DATABASE SET default_transaction_read_only = true",
			"SET default_transaction_read_only = off"),
	})
}

// The role of commands.md#roles may do less than a relay.
func TestAnOperatorNeedsNoPrivilegesOfTheRelay(t *testing.T) {
	p := onDatabase(t, services.SharedPostgres(t).Database(t))
	p.setup()
	name, login := p.Role("")
	p.exec("GRANT USAGE ON SCHEMA public TO "+name, "GRANT SELECT ON outbox, outbox_dead_letter, outbox_migrations TO "+name)
	p.as(login)
	p.examine().want(doctor.Problem, doctor.Grants, "relay", "may not")
	p.Operator = true
	p.examine().wantOthersOK()
}

// Vaults lease logins that act as a role with the grants.
func TestALoginMayActAsTheRelaysRole(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	group := p.relayRole("REPLICATION")
	lease, login := p.Role("REPLICATION CONNECTION LIMIT 6")
	p.exec("GRANT "+group+" TO "+lease, "ALTER ROLE "+lease+" SET role = "+group)
	p.as(login)
	p.fix(p.examine().want(doctor.Warning, doctor.Postgres, "connections", lease, "may open 6 connections"))
	p.examine().wantOthersOK()
	p.exec("ALTER ROLE " + group + " NOREPLICATION")
	p.fix(p.examine().want(doctor.Warning, doctor.Postgres, "replication", lease, "sessions act as", group, "cannot create the slot again"))
	p.examine().wantOthersOK()
	p.exec("ALTER ROLE " + lease + " NOREPLICATION")
	p.fix(p.examine().want(doctor.Problem, doctor.Postgres, "replication", lease, "may not replicate"))
	p.examine().wantOthersOK()
}

// The owner of the outbox chooses the names of its sequence, of its roles and of the publication. An administrator runs
// the repairs.
func TestRepairsRunNothingThatANameHides(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.exec("CREATE TABLE victim ()")
	sequence := "outbox_id_seq"
	for _, name := range []string{
		"a;\nDROP TABLE victim; --", "a\"; DROP TABLE victim; --", "a\r; DROP TABLE victim; --", "a'; DROP TABLE victim; --", "$$; DROP TABLE victim; $$", "a\u202e;\nDROP TABLE victim",
	} {
		role, _ := p.Role("REPLICATION")
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
			if err := repair.Run(t.Context(), p.Conn.PgConn()); err != nil {
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
	if err := (doctor.Repair{SQL: "SELECT 1; SELECT 2"}).Run(t.Context(), p.Conn.PgConn()); !errors.As(err, &refused) || refused.Code != "42601" {
		t.Errorf("got %v", err)
	}
}

func messageGrant(role string) string {
	return "GRANT INSERT (" + strings.Join(schema.Insert(), ", ") + ") ON outbox TO " + role
}

// application creates a role that may insert messages.
func (p *patient) application() {
	p.Helper()
	p.named, _ = p.Role("")
	p.AppRoles = []string{p.named}
	p.exec("GRANT USAGE ON SCHEMA public TO "+p.named, messageGrant(p.named))
}

func TestFaultsOfAnApplicationsRoleAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	fault := func(level doctor.Level, statements string, words ...string) breakage {
		return broken(level, "grants/application", statements, words).after((*patient).application)
	}
	breakAndFix(t, map[string]breakage{
		"none": fault(doctor.OK, "", "may INSERT, and nothing else").keep(),
		"no such role": fault(doctor.Problem, "", "does not exist", `CREATE ROLE "No such role" LOGIN`).after(func(p *patient) {
			p.AppRoles = []string{"No such role"}
		}).keep(),
		"no grants": fault(doctor.Problem, "REVOKE ALL ON SCHEMA public FROM PUBLIC, $ROLE; REVOKE ALL ON outbox FROM $ROLE",
			"may not use schema public", "INSERT into public.outbox"),
		"few columns":        fault(doctor.OK, "REVOKE INSERT ON outbox FROM $ROLE; GRANT INSERT (routing_key, payload) ON outbox TO $ROLE").keep(),
		"row-level security": fault(doctor.Problem, "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY", "row-level security", "CREATE POLICY"),
	})
}

// An identity column needs no grant for its sequence, a default of nextval does.
func TestTheApplicationsSequencesAreExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.application()
	p.examine().wantOthersOK()
	p.exec("ALTER TABLE outbox ALTER id DROP IDENTITY", `CREATE SEQUENCE "S"`, `ALTER TABLE outbox ALTER id SET DEFAULT nextval('"S"')`)
	p.fix(p.examine().want(doctor.Problem, doctor.Grants, "application", `may not use sequence public."S"`, `GRANT USAGE ON SEQUENCE public."S" TO`))
	p.examine().wantOthersOK()
	p.exec("SET ROLE "+p.named, "INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')", "RESET ROLE")
}

// The finding says which ORMs fail, and its grant is what they need.
func TestTheApplicationsColumnGrantsAreExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.application()
	app := p.named
	insert := "SET ROLE " + app + "; INSERT INTO outbox (routing_key, payload) VALUES ('k', '1') RETURNING id, message_id"
	if _, err := p.Conn.Exec(t.Context(), insert); err == nil {
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
	_, err := migrations.MakeFunctions(t.Context(), p.Conn, p.Table)
	must(t, err)
	_, err = grants.Make(t.Context(), p.Conn, app, grants.Calls(p.Table))
	must(t, err)
	p.examine().want(doctor.OK, doctor.Grants, "application", "may call public.outbox_enqueue")
	p.exec(messageGrant(app), grant)
	p.examine().want(doctor.OK, doctor.Grants, "application", "may INSERT and read id, message_id")
}

// Each role has findings of its own.
func TestSeveralApplicationsAreExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	good, _ := p.Role("")
	bad, _ := p.Role("")
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

// Nobody but relays, operators and the owner may change rows. The finding follows the grant, so that its fix ends it.
func TestRolesThatMayChangeRowsAreReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.relayRole("REPLICATION")
	operator, _ := p.Role("")
	member, _ := p.Role("IN ROLE " + operator)
	p.exec("GRANT SELECT, UPDATE, INSERT ON outbox TO "+operator, "GRANT SELECT, DELETE ON outbox_dead_letter TO "+operator, "GRANT UPDATE, DELETE ON outbox TO "+member)
	app, _ := p.Role("")
	login, _ := p.Role("IN ROLE " + app)
	p.examine().want(doctor.OK, doctor.Grants, "writers")
	for _, test := range []struct{ grant, words, revoke string }{
		{"GRANT UPDATE ON outbox TO " + app, "may UPDATE", "REVOKE UPDATE ON"},
		{"GRANT DELETE ON outbox TO " + app, login, "REVOKE DELETE ON"},
		{"GRANT UPDATE (available_at) ON outbox TO " + app, "may UPDATE", "REVOKE UPDATE ON"},
		{"GRANT TRUNCATE, TRIGGER, REFERENCES ON outbox TO " + app, "may TRUNCATE, REFERENCES, TRIGGER", "REVOKE TRUNCATE, REFERENCES, TRIGGER ON"},
		{"GRANT REFERENCES (id) ON outbox TO " + app, "may REFERENCES", "REVOKE REFERENCES ON"},
		{"GRANT DELETE ON outbox TO PUBLIC", "every role (PUBLIC)", "FROM PUBLIC"},
		{"GRANT pg_write_all_data TO " + app, "as a member of pg_write_all_data", `REVOKE "pg_write_all_data" FROM`},
		{"ALTER ROLE " + app + " NOLOGIN; GRANT UPDATE ON outbox TO " + app, login, "REVOKE UPDATE ON"},
	} {
		p.exec(test.grant)
		p.fix(p.examine().want(doctor.Warning, doctor.Grants, "writers", test.words, test.revoke))
		p.examine().want(doctor.OK, doctor.Grants, "writers")
	}
	p.exec("ALTER ROLE "+app+" SUPERUSER", "GRANT UPDATE ON outbox TO "+app)
	p.examine().want(doctor.OK, doctor.Grants, "writers")
	p.exec("ALTER ROLE "+app+" NOSUPERUSER LOGIN", "GRANT USAGE ON SCHEMA public TO "+app, messageGrant(app))
	p.AppRoles = []string{app}
	p.fix(p.examine().want(doctor.Warning, doctor.Grants, "application", "may UPDATE besides INSERT", "REVOKE UPDATE"))
	p.examine().want(doctor.OK, doctor.Grants, "application", "nothing else")
}

// The documented columns are enough. More of the relay's own, from wherever, are reported.
func TestTheApplicationMayOnlySetTheColumnsOfAMessage(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	group, _ := p.Role("")
	app, _ := p.Role("IN ROLE " + group)
	p.AppRoles = []string{app}
	p.exec("GRANT USAGE ON SCHEMA public TO " + group)
	for _, grant := range []string{
		"GRANT INSERT ON outbox TO " + group, "GRANT INSERT ON outbox TO PUBLIC", "GRANT INSERT ON outbox TO " + app,
		messageGrant(group) + "; GRANT INSERT (id) ON outbox TO " + app, messageGrant(group) + "; GRANT INSERT (attempts, possible_duplicate) ON outbox TO " + group,
	} {
		p.exec(grant)
		p.fix(p.examine().want(doctor.Warning, doctor.Grants, "application", "the relay's own", "REVOKE INSERT ON"))
		p.examine().want(doctor.OK, doctor.Grants, "application", "may INSERT, and nothing else")
		p.exec("SET ROLE "+app, "INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')", "RESET ROLE", "REVOKE INSERT ON outbox FROM PUBLIC, "+group+", "+app)
	}
}
