package adopt

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The layouts that need no --map.
const (
	// Debezium is the table of Debezium's outbox event router: id, aggregatetype, aggregateid, type, payload, and
	// timestamp and tracingspancontext of its Quarkus extension (debezium.io, "Outbox Event Router", "Basic outbox
	// table"; github.com/debezium/debezium-quarkus, OutboxEventHbmWriter.java and DataMapTracingSetter.java).
	Debezium = "debezium"
	// CeleryOutbox is the table of django-celery-outbox (github.com/Barsoomx/django-celery-outbox, models.py: the
	// columns; serialization.py: the keys of options).
	CeleryOutbox = "celery-outbox"
	// Watermill is a table of a topic (github.com/ThreeDotsLabs/watermill-sql, pkg/sql/schema_adapter_postgresql.go and
	// queue_schema_adapter_postgresql.go), with or without the envelope of the forwarder
	// (github.com/ThreeDotsLabs/watermill, components/forwarder/envelope.go). Headers are those of
	// github.com/ThreeDotsLabs/watermill-amqp, pkg/amqp/marshaler.go.
	Watermill = "watermill"
	// CAP is the table of published messages of DotNetCore.CAP (github.com/dotnetcore/CAP,
	// src/DotNetCore.CAP.PostgreSql/IStorageInitializer.PostgreSql.cs and IDataStorage.PostgreSql.cs). The message is
	// that of src/DotNetCore.CAP.RabbitMQ/ITransport.RabbitMQ.cs; CAP.RabbiMQOptions.cs names the exchange.
	CAP = "cap"
	// Namastack is the table of Namastack Outbox (github.com/namastack/namastack-outbox,
	// namastack-outbox-jpa/src/main/resources/schema/postgres/outbox-tables.sql). The message is that of
	// namastack-outbox-rabbit, RabbitOutboxAutoConfiguration.kt and RabbitOutboxPublisher.kt, with Spring's JSON
	// converter; namastack-outbox-core, BaseHandlerMethod.kt, makes the handler_id.
	Namastack = "namastack"
)

// layout is what is known of a table. adopt.sql has the rest: what no mapping can express.
type layout struct {
	usage, table string // table is its usual name
	// mapping and optional are written as --map. A table may lack the columns of optional.
	mapping, optional string
	// waiting selects the rows that are still to be sent, by the column state; "": only the user knows.
	waiting, state string
	// only selects the rows that are messages, as a format of the row's name. The others stay in the table.
	only string
}

// layoutOf returns the layout of a name; unknown, or "": the zero layout.
func layoutOf(name string) layout {
	return map[string]layout{
		Debezium: {
			usage: "the table of Debezium's outbox event router", table: "outboxevent",
			mapping: `message_id=id, routing_key='outbox.event.'||aggregatetype,
				ordering_key=aggregatetype||':'||aggregateid, payload=payload,
				properties.type=type, headers.aggregateid=aggregateid`,
			optional: "created_at=timestamp",
		},
		CeleryOutbox: {
			usage: "the table of django-celery-outbox", table: "celery_outbox",
			waiting: "true", state: "id", // its own relay deletes sent rows
		},
		Watermill: {
			usage: "the table of a topic of Watermill's SQL publisher",
			mapping: `message_id=uuid, payload=payload, headers=metadata, headers._watermill_message_uuid=uuid,
			created_at=created_at`,
			waiting: "NOT acked", state: "acked",
		},
		CAP: {
			usage: "the table of published messages of CAP for .NET", table: "cap.published",
			mapping: `message_id=Id, exchange='cap.default.router', routing_key=Name, payload=Content,
				attempts=Retries`,
			waiting: `"StatusName" <> 'Succeeded'`, state: "StatusName",
		},
		Namastack: {
			usage: "the table of Namastack Outbox for Spring", table: "outbox_record",
			mapping: `message_id=id, exchange='outbox-events', routing_key=record_key, ordering_key=record_key,
			payload=payload, properties.content_encoding='UTF-8', headers.__TypeId__=record_type, created_at=created_at,
			attempts=failure_count`,
			waiting: "status = 'NEW'", state: "status",
			only: `%s."handler_id" LIKE 'io.namastack.outbox.rabbit.RabbitOutboxHandler#%%'`,
		},
	}[name]
}

// Layouts returns the names in the order of the help page.
func Layouts() []string { return []string{Debezium, CeleryOutbox, Watermill, CAP, Namastack} }

// Usage returns what the layout is, for the help page.
func Usage(layout string) string { return layoutOf(layout).usage }

// defaults returns the mappings of a layout, without columns that only some versions have and this table lacks.
func (s *source) defaults(layout string) []mapping {
	all, optional := mustParse(layoutOf(layout).mapping), mustParse(layoutOf(layout).optional)
	if layout == Watermill {
		topic := part{literal: true, text: strings.TrimPrefix(s.table.Name, "watermill_")}
		all = append(all, mapping{target: "routing_key", parts: []part{topic}})
	}
	return append(all, slices.DeleteFunc(optional, func(m mapping) bool { return !s.has(m.parts[0].column) })...)
}

func mustParse(text string) []mapping {
	all, err := parseMap(text)
	if err != nil {
		panic("adopt: " + err.Error()) // it parses a constant
	}
	return all
}

// waiting returns the condition for the rows that are still to be sent; "": only the user knows.
func (s *source) waiting(layout string) string {
	if l := layoutOf(layout); s.has(l.state) {
		return l.waiting
	}
	return ""
}

// only returns the condition for the rows that are messages; "": all are.
func only(layout, row string) string {
	if format := layoutOf(layout).only; format != "" {
		return fmt.Sprintf(format, row)
	}
	return ""
}

// tracing parses the output of java.util.Properties: lines of key=value, with backslashes before some characters.
const tracing = `coalesce((SELECT jsonb_object_agg(translate(m[1], E'\\', ''), translate(m[2], E'\\', ''))
            FROM regexp_matches(r."tracingspancontext"::text, '^([^#!=][^=]*)=(.*)$', 'gn') m), '{}')` +
	` || coalesce(headers, '{}')`

// assignment is a variable of the function with the expression for it. r is the row.
type assignment struct{ Variable, Expression string }

// conversion converts a row of the source into a row of the outbox.
type conversion struct {
	layout      string
	assignments []assignment
	// body is the expression for a body that may not be JSON; "": payload or payload_bytes is assigned.
	body string
	// queue and priority are the expressions for Celery tasks whose row has none.
	queue, priority string
	// columns are the source columns that the conversion reads.
	columns []string
}

func (s *source) convert(layout string, given []mapping) (*conversion, error) {
	c := &conversion{layout: layout}
	if layout == CeleryOutbox {
		return c, s.convertCelery(c, given)
	}
	all := merged(s.defaults(layout), given)
	for _, m := range all {
		if name, _, _ := strings.Cut(m.target, "."); name == taskRoutes || name == taskPriority {
			return nil, problem.New("--map routing_key=COLUMN", "%s is for adopt celery-outbox only", m.target)
		}
		for i, p := range m.parts {
			if p.literal {
				continue
			}
			found, there := s.find(p)
			m.parts[i].found = found
			if !there {
				return nil, problem.New(
					fmt.Sprintf("--map %s=COLUMN, with one of %s; or %[1]s= for none", m.target, s.names()),
					"table %s has no column %s, for %s", s.table, p.column, m.target)
			}
			if !slices.Contains(c.columns, found.Name) {
				c.columns = append(c.columns, found.Name)
			}
		}
	}
	if err := s.assign(c, all); err != nil {
		return nil, err
	}
	if layout == Debezium && s.has("tracingspancontext") {
		c.assignments = append(c.assignments, assignment{"headers", tracing})
	}
	for _, needed := range []string{"routing_key", "payload"} {
		if !slices.ContainsFunc(all, func(m mapping) bool { return m.target == needed && len(m.parts) > 0 }) {
			return nil, problem.New("--map "+needed+"=COLUMN", "nothing says what becomes the %s of a message", needed)
		}
	}
	return c, nil
}

// convertCelery converts a table with known columns; adopt.sql has the rest. It routes tasks as Celery's own
// router does (celery/app/routes.py): what the row has goes before the route.
func (s *source) convertCelery(c *conversion, given []mapping) error {
	c.columns = []string{"id", "created_at", "task_id", "task_name", "args", "kwargs", "options"}
	for _, name := range c.columns {
		if !s.has(name) {
			return problem.New("cdc-relay adopt --from "+shell(s.table.String())+" --map ...",
				"table %s has no column %s: it is not that of django-celery-outbox", s.table, name)
		}
	}
	queues, priorities := routes{otherwise: "'celery'"}, routes{otherwise: "NULL"}
	for _, m := range given {
		target, pattern, _ := strings.Cut(m.target, ".")
		switch {
		case len(m.parts) != 1 || !m.parts[0].literal:
			target = "" // no text
		case target == taskPriority:
			if _, err := strconv.ParseUint(m.parts[0].text, 10, 8); err != nil {
				return problem.New("--map \""+m.target+"='5'\"", "the %s is not a number from 0 to 255", m.target)
			}
		}
		switch target {
		case "routing_key", taskRoutes:
			queues.add(pattern, m.asText())
		case taskPriority:
			priorities.add(pattern, m.asText())
		default:
			return problem.New("--map \"routing_key='QUEUE',task_routes.PATTERN='QUEUE',task_priority.PATTERN='5'\"",
				"with celery-outbox, --map only sets queue and priority of tasks whose row has none")
		}
	}
	c.queue, c.priority = queues.sql(), priorities.sql()
	return nil
}

// routes is a setting by the names of tasks. A complete name goes before a pattern, then the first pattern counts.
type routes struct{ exact, patterns, otherwise string }

func (r *routes) add(pattern, value string) {
	when := func(operator, pattern string) string {
		return fmt.Sprintf(" WHEN %s %s %s THEN %s", taskName, operator, migrations.QuoteLiteral(pattern), value)
	}
	switch {
	case pattern == "":
		r.otherwise = value
	case strings.Contains(pattern, "*"):
		r.patterns += when("LIKE", strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`, "*", "%").Replace(pattern))
	default:
		r.exact += when("=", pattern)
	}
}

func (r *routes) sql() string {
	if r.exact+r.patterns == "" {
		return r.otherwise
	}
	return "CASE" + r.exact + r.patterns + " ELSE " + r.otherwise + " END"
}

// taskName is what Celery looks up in its routes.
const taskName = `coalesce(options ->> 'route_name', r."task_name")`

// assign writes the expressions. They stand in a block with an exception handler, so none can fail the application's
// INSERT.
func (s *source) assign(c *conversion, all []mapping) error {
	var entries []assignment // added to headers and properties after those are set
	for _, m := range all {
		if len(m.parts) == 0 {
			continue
		}
		text := m.asText()
		variable, entry, _ := strings.Cut(m.target, ".")
		switch {
		case variable == "payload":
			c.setBody(m, text)
			continue
		case variable == "headers" && entry != "":
			entries = append(entries, withEntry(variable, entry, asJSON(m, text)))
			continue
		case variable == "properties" && entry != "":
			entries = append(entries, withEntry(variable, entry, property(entry, text)))
			continue
		case variable == "message_id":
			if text = s.asUUID(text); m.single().Type == "uuid" {
				text = field(m.single().Name)
			}
		case variable == "headers" || variable == "properties":
			text = "nullif(" + text + "::jsonb, 'null')"
		case variable == "max_attempts" || variable == "attempts":
			text += "::smallint"
		case variable == "redacted_payload":
			text += "::json"
		case strings.HasSuffix(variable, "_at"):
			found := m.parts[0].found
			if !slices.Contains([]string{"timestamptz", "timestamp", "date"}, m.single().Type) {
				return problem.New(fmt.Sprintf("--map %s=  # leaves it out", m.target),
					"%s needs one column with date and time, and not %s",
					m.target, strings.TrimSpace(found.Name+" "+found.Type))
			}
			text = field(found.Name) + "::timestamptz"
		}
		c.assignments = append(c.assignments, assignment{variable, text})
	}
	c.assignments = append(c.assignments, entries...)
	return nil
}

func property(name, text string) string {
	if slices.Contains([]string{"priority", "delivery_mode", "expiration"}, name) {
		text = "(" + text + ")::bigint"
	}
	return "to_jsonb(" + text + ")"
}

// withEntry adds one key, unless its value is null.
func withEntry(variable, key, value string) assignment {
	return assignment{variable, fmt.Sprintf("coalesce(%s, '{}') || "+
		"CASE WHEN %s IS NULL THEN '{}' ELSE jsonb_build_object(%s, %[2]s) END",
		variable, value, migrations.QuoteLiteral(key))}
}

// asText returns the expression for the value as text.
func (m mapping) asText() string {
	text := join(m.parts, " || ", func(p part) string {
		if p.literal {
			return migrations.QuoteLiteral(p.text) + "::text"
		}
		return field(p.found.Name) + "::text"
	})
	if len(m.parts) > 1 {
		return "(" + text + ")"
	}
	return text
}

// asJSON returns the expression for the value as JSON. Numbers and objects keep their type.
func asJSON(m mapping, text string) string {
	if column := m.single(); column.Name != "" {
		text = field(column.Name)
	}
	return "to_jsonb(" + text + ")"
}

// asUUID accepts any text. It derives a UUID from a text that is not one; the same text always gives the same UUID.
func (s *source) asUUID(text string) string {
	const pattern = `'^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$'`
	return fmt.Sprintf("CASE WHEN %s ~* %s THEN %[1]s::uuid ELSE md5(%s || %[1]s)::uuid END",
		text, pattern, migrations.QuoteLiteral(s.table.String()+"/"))
}

func (c *conversion) setBody(m mapping, text string) {
	column := m.single()
	switch column.Type {
	case "json":
		c.assignments = append(c.assignments, assignment{"payload", field(column.Name)})
	case "jsonb":
		c.assignments = append(c.assignments, assignment{"payload", text + "::json"})
	case "bytea":
		c.assignments = append(c.assignments, assignment{"payload_bytes", field(column.Name)})
	default:
		c.body = text
	}
}

// field is a column of the row.
func field(name string) string { return "r." + outbox.QuoteIdentifier(name) }
