package doctor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

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
			p.Administrator = true
			p.asRole(role)
			p.examine().wantOthersOK()
			p.exec(fmt.Sprintf(test.breaks+"%.0[1]s%.0[2]s", role, outbox.QuoteIdentifier(p.conn.Config().Database)))
			p.fix(p.examine().want(test.level, doctor.Postgres, test.check, test.words...))
			p.examine().wantOthersOK()
		})
	}
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

func TestARoleWithoutReplicationIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.relayRole("")
	p.fix(p.examine().want(doctor.Problem, doctor.Postgres, "replication", "may not replicate", "ALTER ROLE", "--mode poll"))
	p.examine().wantOthersOK()
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
