package doctor_test

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// patient is a relay's database and broker, for tests that break, examine and repair it.
type patient struct {
	doctor.Options
	*tabletest.Tables // as their owner
	broker            *services.RabbitMQ
	declares          *amqp.Channel
	named             string // the role for which $ROLE stands
}

// healthy creates a database with everything that a relay needs.
func healthy(t *testing.T, server *services.Postgres) *patient {
	t.Helper()
	p := onDatabase(t, server.Database(t))
	p.setup()
	return p
}

func onDatabase(t *testing.T, url string) *patient {
	t.Helper()
	name := services.Name(t)
	p := &patient{
		Tables:  &tabletest.Tables{TB: t, URL: url, Conn: tabletest.Connect(t, url)},
		Options: doctor.Options{Table: tabletest.Name(), Slot: name, Publication: name},
	}
	p.as(url)
	return p
}

// as changes the address and the login of the relay.
func (p *patient) as(url string) { p.connectTo(url, nil) }

// asRole examines a role with the login of the owner, as check --relay-role does.
func (p *patient) asRole(role string) { p.connectTo(p.URL, map[string]string{"role": role}) }

func (p *patient) connectTo(url string, with map[string]string) {
	p.Connect = func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			return nil, err
		}
		maps.Copy(config.RuntimeParams, parameters)
		maps.Copy(config.RuntimeParams, with)
		config.DefaultQueryExecMode = pgx.QueryExecModeExec // as the command check does
		return pgx.ConnectConfig(ctx, config)
	}
}

func (p *patient) setup() {
	p.Helper()
	_, err := migrations.Restore(p.Context(), p.Conn, p.Table)
	must(p, err)
	_, _, err = migrations.Up(p.Context(), p.Conn, p.Table)
	must(p, err)
	if p.KeepPublished > 0 {
		_, err := migrations.MakeHistory(p.Context(), p.Conn, p.Table)
		must(p, err)
	}
	if p.Poll {
		return
	}
	names := provision.Names{Table: p.Table, Publication: p.Publication, Slot: p.Slot, Shard: p.Shard}
	_, err = provision.Setup(p.Context(), p.Conn.PgConn(), names, await.Hang())
	must(p, err)
}

func (p *patient) exec(statements ...string) {
	p.Helper()
	for _, statement := range statements {
		p.Exec(statement)
	}
}

// relayRole has the grants that docs/getting-started.md lists for a relay.
func (p *patient) relayRole(attributes string) string {
	p.Helper()
	name, login := p.Role(attributes)
	p.exec("GRANT USAGE ON SCHEMA public TO "+name, "GRANT SELECT, UPDATE, DELETE ON outbox TO "+name,
		"GRANT SELECT ON SEQUENCE outbox_id_seq TO "+name, "GRANT SELECT, INSERT ON outbox_dead_letter TO "+name,
		"GRANT SELECT, UPDATE ON outbox_migrations TO "+name, "GRANT ALL ON outbox_relay TO "+name, "GRANT pg_read_all_stats TO "+name)
	p.as(login)
	return name
}

// withBroker gives the relay a virtual host and the broker's API.
func (p *patient) withBroker(broker *services.RabbitMQ) *patient {
	p.Helper()
	if broker.ManagementURL() == "" {
		p.Skip("the HTTP API of this broker has no known address")
	}
	p.broker = broker
	p.RabbitMQ.Value, p.ManagementURL = broker.VHost(p), broker.ManagementURL()
	return p
}

func (p *patient) examine() report {
	p.Helper()
	return report{p, doctor.Examine(p.Context(), p.Options)}
}

type report struct {
	t        testing.TB
	findings []doctor.Finding
}

func (r report) String() string {
	var lines []string
	for _, f := range r.findings {
		lines = append(lines, fmt.Sprintf("%s %s %s [%s] %s\n    %s", f.Level, f.Area, f.Name, f.Subject, f.Message, strings.Join(f.Fix, "\n    ")))
	}
	return strings.Join(lines, "\n")
}

func (r report) finding(area doctor.Area, name string) doctor.Finding {
	r.t.Helper()
	var worst *doctor.Finding
	for i, f := range r.findings {
		if f.Area == area && f.Name == name && (worst == nil || rank(f.Level) > rank(worst.Level)) {
			worst = &r.findings[i]
		}
	}
	if worst == nil {
		r.t.Fatalf("there is no finding %s %s in\n%s", area, name, r)
	}
	return *worst
}

func rank(level doctor.Level) int {
	return slices.Index([]doctor.Level{doctor.OK, doctor.Warning, doctor.Problem}, level)
}

func (r report) want(level doctor.Level, area doctor.Area, name string, words ...string) doctor.Finding {
	r.t.Helper()
	f := r.finding(area, name)
	if f.Level != level {
		r.t.Errorf("%s %s is %s, want %s: %s", area, name, f.Level, level, f.Message)
	}
	for _, word := range words {
		if !strings.Contains(f.Message+"\n"+strings.Join(f.Fix, "\n"), word) {
			r.t.Errorf("%s %s lacks %q: %s\n%s", area, name, word, f.Message, strings.Join(f.Fix, "\n"))
		}
	}
	for _, line := range f.Fix {
		if !doctor.Pasteable(strings.TrimSpace(line)) {
			r.t.Errorf("%s %s: this cannot be pasted: %s", area, name, line)
		}
	}
	if level != doctor.OK && len(f.Fix) == 0 {
		r.t.Errorf("%s %s says no fix", area, name)
	}
	return f
}

// wantOthersOK expects that only the named findings are worse than ok.
func (r report) wantOthersOK(names ...string) {
	r.t.Helper()
	// Test servers have no WAL limit and slots of other tests, and no relay runs.
	names = append(names, "active", "max_slot_wal_keep_size", "other_slot")
	for _, f := range r.findings {
		if f.Level != doctor.OK && !slices.Contains(names, f.Name) {
			r.t.Errorf("%s %s %s: %s\n%s", f.Level, f.Area, f.Name, f.Message, strings.Join(f.Fix, "\n"))
		}
	}
}

// fix runs the fix of a finding, as a person who pastes it line by line.
func (p *patient) fix(f doctor.Finding) {
	p.Helper()
	for _, line := range f.Fix {
		command, _, _ := strings.Cut(line, "  # ")
		command, _, _ = strings.Cut(command, ";  -- ")
		switch {
		case strings.HasPrefix(command, "--"), strings.HasPrefix(command, "#"):
		case strings.HasPrefix(command, "cdc-relay setup"):
			p.setup()
		case strings.HasPrefix(command, "rabbitmqctl "):
			p.ctl(command)
		case strings.HasPrefix(command, "curl "):
			p.curl(command)
		default:
			p.exec(command)
		}
	}
}

// ctl runs a line for rabbitmqctl, parsed by the shell.
func (p *patient) ctl(line string) {
	p.Helper()
	words, err := exec.CommandContext(p.Context(), "sh", "-c", `printf '%s\0' `+strings.TrimPrefix(line, "rabbitmqctl ")).Output()
	if err != nil {
		p.Fatalf("%s: %v", line, err)
	}
	args := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
	if output, err := p.broker.Ctl(p.Context(), args...); err != nil {
		p.Fatalf("%s: %v: %s", line, err, output)
	}
}

// curl runs a line with the broker's own user in place of ADMIN.
func (p *patient) curl(line string) {
	p.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		p.Skip("curl is not installed")
	}
	line = strings.Replace(line, "curl -u ADMIN", "curl -fsS -u guest:guest", 1)
	if output, err := exec.CommandContext(p.Context(), "sh", "-c", line).CombinedOutput(); err != nil {
		p.Fatalf("%s: %v: %s", line, err, output)
	}
}

// breakage is one fault on a shared server, by statements. In these, $PUB and $SLOT are the names of the publication and
// of the slot, $DAY0 and $DAY1 the partitions of the history for today and tomorrow, and $ROLE is a role.
type breakage struct {
	before     func(p *patient)
	statements string
	level      doctor.Level
	area       doctor.Area
	check      string
	words      []string
	asIs       bool // the fix needs a person's choice
}

func (b breakage) breaks(p *patient) {
	b.before(p)
	p.Exec(strings.NewReplacer("$PUB", p.Publication, "$SLOT", p.Slot, "$ROLE", p.named, "$DAY0", p.day(0), "$DAY1", p.day(1),
		"$DATABASE", outbox.QuoteIdentifier(p.Conn.Config().Database)).Replace(b.statements))
}

// broken is a breakage that the check AREA/NAME finds.
func broken(level doctor.Level, check, statements string, words []string) breakage {
	area, name, _ := strings.Cut(check, "/")
	return breakage{func(*patient) {}, statements, level, doctor.Area(area), name, words, false}
}

func wrong(check, statements string, words ...string) breakage {
	return broken(doctor.Problem, check, statements, words)
}

func warns(check, statements string, words ...string) breakage {
	return broken(doctor.Warning, check, statements, words)
}

func passes(statements string) breakage {
	return broken(doctor.OK, "tables/table", statements, nil).keep()
}

// after is a breakage whose statements run after a function.
func (b breakage) after(before func(p *patient)) breakage {
	b.before = before
	return b
}

func (b breakage) keep() breakage {
	b.asIs = true
	return b
}

// breakAndFix examines each breakage, runs the fix, and examines it again.
func breakAndFix(t *testing.T, set map[string]breakage) {
	for name, test := range set {
		t.Run(name, func(t *testing.T) {
			p := healthy(t, services.SharedPostgres(t))
			test.breaks(p)
			r := p.examine()
			found := r.want(test.level, test.area, test.check, test.words...)
			if test.level == doctor.OK {
				r.wantOthersOK()
			}
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
