package doctor

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// hostileNames are names of objects with which their owners try to add a statement, a command or a line to a fix.
func hostileNames() []string {
	return []string{
		"a\n; DROP TABLE x; --", "a\r\\! touch /tmp/x", "a'--", `a"b`, "a$$b", "a\u202eb", "é" + strings.Repeat("ü", 30), `a\`, "-x",
		"a;  -- b", "a;  # b", "$(touch /tmp/x)", "`id`", "a\n", "\x1b[2Ka", "a\u0085; DROP TABLE x", "/*", "%s%d%!", "a\n-- b", " ",
	}
}

// TestNoNameBecomesAStatementOrALine renders all fixes with hostile names of every kind of object.
func TestNoNameBecomesAStatementOrALine(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range hostileNames() {
		findings := slices.Concat(hostileTables(name), hostileGrants(name), hostileServer(name), hostileBroker(name))
		for _, f := range findings {
			seen[string(f.Area)+"/"+f.Name] = true
			for _, line := range append([]string{f.Message}, f.Fix...) {
				if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%q: %s %s is not one printable line: %q", name, f.Area, f.Name, line)
				}
			}
			for _, line := range f.Fix {
				switch {
				case strings.HasPrefix(line, "--"), strings.HasPrefix(line, "#"):
				case strings.ToUpper(line[:3]) == line[:3]:
					if fault := wrongSQL(line); fault != "" {
						t.Errorf("%q: %s %s: %s: %s", name, f.Area, f.Name, fault, line)
					}
				default:
					if fault := wrongCommand(line); fault != "" {
						t.Errorf("%q: %s %s: %s: %s", name, f.Area, f.Name, fault, line)
					}
				}
			}
		}
		for _, r := range Repairs(findings) {
			if r.SQL != "" && strings.Contains(outsideQuotes(r.SQL), ";") {
				t.Errorf("%q: two statements in one repair: %q", name, r.SQL)
			}
		}
	}
	for _, name := range []string{
		"tables/column", "tables/index", "tables/sequence", "tables/triggers", "tables/references", "tables/constraints", "tables/adopted", "tables/table",
		"grants/relay", "grants/sequence", "grants/application", "grants/writers", "publication/publication", "slot/slot", "cleanup/prepared_transactions",
		"cleanup/transactions", "rabbitmq/exchange", "rabbitmq/write", "routing/route", "routing/overflow", "routing/message_ttl", "routing/alternate_exchange", "rabbitmq/management",
	} {
		if !seen[name] {
			t.Errorf("no finding %s was examined", name)
		}
	}
}

// wrongSQL says why a line is not one statement with at most a remark behind it.
func wrongSQL(line string) string {
	bare := outsideQuotes(line)
	statement, rest, found := strings.Cut(bare, ";")
	switch {
	case !found:
		return "no semicolon outside quotes"
	case strings.Contains(statement, "--") || strings.Contains(statement, "/*") || strings.ContainsAny(statement, "\"'"):
		return "a comment or an open quote in " + statement
	case rest != "" && !strings.HasPrefix(rest, "  -- "):
		return "a second statement " + rest
	}
	return ""
}

// outsideQuotes removes quoted names and strings, as the lexer of Postgres reads them.
func outsideQuotes(sql string) string {
	remark := strings.Index(sql, ";  -- ")
	for _, quoted := range regexp.MustCompile(`E'(?:[^'\\]|\\.|'')*'|"(?:[^"]|"")*"|'(?:[^']|'')*'`).FindAllString(sql, -1) {
		if at := strings.Index(sql, quoted); remark < 0 || at < remark || strings.Contains(quoted, ";  -- ") {
			sql = sql[:at] + "Q" + sql[at+len(quoted):]
			remark = strings.Index(sql, ";  -- ")
		}
	}
	return sql
}

// wrongCommand says why a line is not one shell command with at most a remark behind it.
func wrongCommand(line string) string {
	bare := regexp.MustCompile(`\$'(?:[^'\\]|\\.)*'|'[^']*'|\\'`).ReplaceAllString(line, "Q")
	bare, _, _ = strings.Cut(bare, "  # ")
	if strings.ContainsAny(bare, "'\"`$;&|<>()\\#*?[~\n\r") {
		return "a character that the shell interprets in " + bare
	}
	return ""
}

func hostileTables(name string) []Finding {
	o, f := defaults(), well()
	o.Table = outbox.Table{Schema: name, Name: name}
	for _, table := range []outbox.Table{o.Table, o.Table.DeadLetter()} {
		facts := f.tables.value.Tables[defaults().Table.Name]
		facts.Owner, facts.Persistence, facts.Secured = name, "u", true
		facts.Columns = append(slices.Clone(facts.Columns), columnFacts{Name: name, Type: `"` + name + `"`, NotNull: true}, columnFacts{Name: name + "2", Type: name})
		for i := range facts.Columns {
			switch facts.Columns[i].Name {
			case "payload":
				facts.Columns[i].Type = name
			case "attempts":
				facts.Columns[i].Default = name
			case "message_id":
				facts.Columns[i].Filled = false
			case "headers":
				facts.Columns[i].Generated = true
			}
		}
		facts.Indexes = []indexFacts{{Index: o.Table, Columns: []string{"id"}, Unique: true}}
		facts.Triggers = []triggerFacts{{Name: name, Function: name, Language: "plpgsql", Type: triggerRow | triggerBefore | triggerDelete | triggerInsert, Returns: []string{"null"}}}
		facts.Rules = []string{name}
		facts.References = []referenceFacts{{Table: o.Table, Name: name, Action: "a"}}
		facts.Constraints = []constraintFacts{{Name: name, Columns: []string{"attempts"}}, {Index: o.Table, Unique: true, Columns: []string{"attempts"}}}
		f.tables.value.Tables[table.Name] = facts
	}
	f.tables.value.Leaves = []leafFacts{{Root: name, Table: o.Table, Persistence: "u"}}
	f.tables.value.Sequence = o.Table
	f.rows = []row{
		{Area: Tables, Name: "sequence", Level: Problem, Says: name, Fix: []string{"ALTER SEQUENCE " + o.Table.SQL() + " CACHE 1;", "safe GRANT USAGE ON SEQUENCE " + o.Table.SQL() + " TO " + quote(name) + ";"}},
	}
	f.adopted.value = []adopt.Adopted{
		{Table: o.Table, Command: adopt.Request{Outbox: o.Table, From: o.Table, Layout: name, Set: []string{name}}.Command()},
		{Table: o.Table, Exists: true, Trigger: true, Enabled: true, LostKey: []string{name}},
	}
	found := judgeDatabase(o, f)
	f.tables.value.Others = map[string]string{name: "VIEW"}
	f.tables.value.Views = map[string][]viewedFacts{name: {{Schema: name, Name: name}}}
	f.tables.value.Sequence = o.Table
	f.version.value = migrations.State{Latest: 1, Pending: make([]migrations.Migration, 1)}
	return append(found, judgeDatabase(o, f)...)
}

func hostileGrants(name string) []Finding {
	o, f := defaults(), well()
	o.AppRoles, o.Administrator = []string{name}, true
	f.role.value = roleFacts{Name: name, User: name}
	f.tables.value.SchemaUsage, f.tables.value.SequenceGranted = false, false
	f.tables.value.Sequence = outbox.Table{Schema: name, Name: name}
	for table, facts := range f.tables.value.Tables {
		facts.Privileges = nil
		f.tables.value.Tables[table] = facts
	}
	f.grants.value = []grantFacts{
		{Role: name, Privileges: []string{"INSERT", "UPDATE"}, Members: []string{name}},
		{Role: name, Privileges: []string{"DELETE"}, Inherited: "pg_write_all_data"},
		{Role: name, Privileges: []string{"INSERT"}, Apps: []string{name}},
	}
	examine := func(facts appFacts) []Finding {
		facts.Name = name
		f.apps = []answer[appFacts]{{value: facts}}
		return judgeDatabase(o, f)
	}
	return slices.Concat(
		examine(appFacts{
			Exists: true, Rejected: true, Defaults: []sequenceFacts{{Table: outbox.Table{Schema: name, Name: name}, Same: true}},
		}),
		examine(appFacts{Exists: true, Connect: true, Usage: true, Columns: []string{"id", "routing_key", "payload"}}),
		examine(appFacts{Exists: true, Connect: true, Usage: true, Columns: []string{"routing_key", "payload"}}),
		examine(appFacts{
			Exists: true, Connect: true, Usage: true, Columns: []string{"routing_key", "payload"},
			Reads: []string{"id", "message_id"},
		}),
		examine(appFacts{}),
	)
}

func hostileServer(name string) []Finding {
	o, f := defaults(), well()
	o.Publication = name
	f.server.value.Database = name
	f.role.value.Name = name
	f.publication.value = publicationFacts{}
	f.slots.value = slotsFacts{Slots: []slot.Slot{{Name: "cdc_relay", Plugin: "pgoutput", Type: "logical", Here: true, Options: slot.Options{Failover: true}, Process: process(name)}}, Standbys: []string{name}}
	open := transaction{PID: 7, User: name, Program: name, State: "idle in transaction", Database: name, Age: 1e6, XIDAge: 1e9, Here: true}
	prepared := open
	prepared.GID, prepared.Here = name, false
	f.transactions.value = transactionFacts{Sessions: []transaction{open}, Prepared: []transaction{prepared}, Writers: []writer{{Blocker: problem.Blocker{GID: name, Program: name, Details: name}, XIDAge: 1e9}, {Blocker: problem.Blocker{PID: 7, Details: name}, XIDAge: 1e9}}, Feedback: []transaction{open}}
	found := judgeDatabase(o, f)
	f.publication.value = publicationFacts{Exists: true, Insert: true, Update: true, ViaRoot: false, Filter: name, Others: 2, HasTable: true}
	f.slots.value.Slots = []slot.Slot{{Name: name, Xmin: "1"}}
	found = append(found, judgeDatabase(o, f)...)
	f.publication.value = publicationFacts{Exists: true, AllTables: true}
	found = append(found, judgeDatabase(o, f)...)
	f.unreachable = errors.New(name)
	return append(found, judgeDatabase(o, f)...)
}

func hostileBroker(name string) []Finding {
	o := defaults()
	o.Exchange, o.EventsExchange = name, name+"2"
	refused := &amqp091.Error{Code: amqp091.AccessRefused, Reason: "ACCESS_REFUSED - access to exchange '" + name + "' refused for user '" + name + "'"}
	missing := &amqp091.Error{Code: amqp091.NotFound, Reason: name}
	queue, other := destination{routingKey: name}, destination{exchange: name + "3", routingKey: name}
	own := destination{exchange: name, routingKey: name}
	definition := map[string]any{"alternate-exchange": name, "x": name}
	b := &brokerFacts{
		vhost: name, user: name, asked: []destination{own, queue, other}, exchanges: map[string]error{name + "2": missing, name: nil, other.exchange: nil},
		queues: map[string]error{name: missing}, writes: map[destination]error{own: refused, other: refused, queue: nil},
		management: managementFacts{
			url: "http://localhost:15672", exchanges: map[string]exchangeFacts{name: {Name: name, Type: "topic"}},
			queues:   map[string]queueFacts{name: {Name: name, Type: "classic", Arguments: map[string]any{"x-max-length": 1.0, "x-message-ttl": 1.0}}},
			policies: []policy{{Name: name, Pattern: ".*", ApplyTo: "all", Definition: definition}},
		},
	}
	found := judgeBroker(o, facts{database: well(), broker: b})
	silent := *b
	silent.management = managementFacts{err: &statusError{code: 401}}
	found = append(found, judgeBroker(o, facts{database: well(), broker: &silent})...)
	uri := amqp091.URI{Host: "localhost", Username: name, Vhost: name}
	for _, err := range []error{refused, amqp091.ErrCredentials, amqp091.ErrVhost, fmt.Errorf("user limit for '%s' reached", name)} {
		found = append(found, judgeBroker(o, facts{database: well(), broker: &brokerFacts{unreachable: amqpdial.Undialled(uri, err)}})...)
	}
	return found
}

// The broker can answer at any time. An exception that comes before the next call is not lost.
func TestAnExceptionBetweenTwoCallsIsReported(t *testing.T) {
	conn := services.DialAMQP(t, services.VHost(t))
	p := &amqpProbe{conn: conn}
	err := p.use(func(c *amqp091.Channel) error {
		closed := c.NotifyClose(make(chan *amqp091.Error, 1))
		if err := c.PublishWithContext(t.Context(), "no such exchange", "k", false, false, amqp091.Publishing{}); err != nil {
			return err
		}
		<-closed
		return c.Tx()
	})
	var exception *amqp091.Error
	if !errors.As(err, &exception) || exception.Code != amqp091.NotFound {
		t.Errorf("got %v", err)
	}
	if err := p.use((*amqp091.Channel).Tx); err != nil {
		t.Errorf("the next call got no channel of its own: %v", err)
	}
}
