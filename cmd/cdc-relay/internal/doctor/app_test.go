package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func messageGrant(role string) string {
	return "GRANT INSERT (" + strings.Join(schema.Insert(), ", ") + ") ON outbox TO " + role
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

// Nobody but relays, operators and the owner may change rows. The finding follows the grant, so that its fix ends it.
func TestRolesThatMayChangeRowsAreReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.relayRole("REPLICATION")
	operator, _ := p.role("")
	member, _ := p.role("IN ROLE " + operator)
	p.exec("GRANT SELECT, UPDATE, INSERT ON outbox TO "+operator, "GRANT SELECT, DELETE ON outbox_dead_letter TO "+operator, "GRANT UPDATE, DELETE ON outbox TO "+member)
	app, _ := p.role("")
	login, _ := p.role("IN ROLE " + app)
	p.examine().want(doctor.OK, doctor.Grants, "writers")
	for _, test := range []struct{ grant, words, revoke string }{
		{"GRANT UPDATE ON outbox TO " + app, "may UPDATE", "REVOKE UPDATE ON"},
		{"GRANT DELETE ON outbox TO " + app, login, "REVOKE DELETE ON"},
		{"GRANT UPDATE (available_at) ON outbox TO " + app, "may UPDATE", "REVOKE UPDATE ON"},
		{"GRANT TRUNCATE, TRIGGER ON outbox TO " + app, "may TRUNCATE, TRIGGER", "REVOKE TRUNCATE, TRIGGER ON"},
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
	group, _ := p.role("")
	app, _ := p.role("IN ROLE " + group)
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
