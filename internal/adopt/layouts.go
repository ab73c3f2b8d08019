package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The layouts that need no --map.
const (
	// Debezium is the table of Debezium's outbox event router: id, aggregatetype, aggregateid, type, payload, and
	// timestamp and tracingspancontext of its Quarkus extension (debezium.io, "Outbox Event Router", "Basic outbox table";
	// github.com/debezium/debezium-quarkus, OutboxEventHbmWriter.java and DataMapTracingSetter.java).
	Debezium = "debezium"
	// CeleryOutbox is the table of django-celery-outbox (github.com/Barsoomx/django-celery-outbox, models.py: the columns;
	// serialization.py: the keys of options).
	CeleryOutbox = "celery-outbox"
	// Watermill is a table of a topic (github.com/ThreeDotsLabs/watermill-sql, pkg/sql/schema_adapter_postgresql.go and
	// queue_schema_adapter_postgresql.go), with or without the envelope of the forwarder (github.com/ThreeDotsLabs/watermill,
	// components/forwarder/envelope.go). Headers are those of github.com/ThreeDotsLabs/watermill-amqp, pkg/amqp/marshaler.go.
	Watermill = "watermill"
)

// Layouts are the names, in the order of the help page.
func Layouts() []string { return []string{Debezium, CeleryOutbox, Watermill} }

// defaults are the mappings of a layout. Columns that not every version has are left out if they are missing.
func (s *source) defaults(layout string) []mapping {
	text := ""
	switch layout {
	case Debezium:
		text = `message_id=id, routing_key='outbox.event.'||aggregatetype, ordering_key=aggregatetype||':'||aggregateid,
			payload=payload, properties.type=type, headers.aggregateid=aggregateid`
		if s.has("timestamp") {
			text += ", created_at=timestamp"
		}
	case Watermill:
		topic := "'" + strings.ReplaceAll(strings.TrimPrefix(s.table.Name, "watermill_"), "'", "''") + "'"
		text = `message_id=uuid, routing_key=` + topic + `, payload=payload, headers=metadata,
			headers._watermill_message_uuid=uuid, created_at=created_at`
	}
	all, err := parseMap(text)
	if err != nil {
		panic("adopt: " + err.Error()) // a text of ours
	}
	return all
}

// waiting is the condition of a layout's rows that are still to be sent; "": only a person knows.
func (s *source) waiting(layout string) string {
	switch {
	case layout == CeleryOutbox:
		return "true" // its relay deletes what was sent
	case layout == Watermill && s.has("acked"):
		return "NOT acked"
	}
	return ""
}

// tracing reads what java.util.Properties wrote: lines of key=value, with a backslash before some characters.
const tracing = `coalesce((SELECT jsonb_object_agg(translate(m[1], E'\\', ''), translate(m[2], E'\\', ''))
            FROM regexp_matches(r."tracingspancontext"::text, '^([^#!=][^=]*)=(.*)$', 'gn') m), '{}') || coalesce(headers, '{}')`

// assignment is a variable of the function, and the expression for it. r is the row.
type assignment struct{ Variable, Expression string }

// conversion is how a row of the source becomes one of the outbox.
type conversion struct {
	layout      string
	assignments []assignment
	// body is the body if it need not be JSON; "": payload or payload_bytes is among the assignments.
	body string
	// queue is where Celery's tasks go that name none, as an expression.
	queue string
	// columns are those of the source that are read.
	columns []string
}

func (s *source) convert(layout string, given []mapping) (*conversion, error) {
	c := &conversion{layout: layout, queue: "'celery'"}
	if layout == CeleryOutbox {
		return c, s.convertCelery(c, given)
	}
	all := merged(s.defaults(layout), given)
	for _, m := range all {
		for _, p := range m.parts {
			if p.literal {
				continue
			}
			found, there := s.find(p)
			if !there {
				return nil, problem.New(fmt.Sprintf("--map %s=COLUMN, with one of %s; or %[1]s= for none", m.target, s.names()), "table %s has no column %s, for %s", s.table, p.column, m.target)
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

// convertCelery is for a table whose columns are known; celery.sql has the rest.
func (s *source) convertCelery(c *conversion, given []mapping) error {
	c.columns = []string{"id", "created_at", "task_id", "task_name", "args", "kwargs", "options"}
	for _, name := range c.columns {
		if !s.has(name) {
			return problem.New("cdc-relay adopt --from "+shell(s.table.String())+" --map ...", "table %s has no column %s: it is not that of django-celery-outbox", s.table, name)
		}
	}
	for _, m := range given {
		if m.target != "routing_key" || len(m.parts) != 1 || !m.parts[0].literal {
			return problem.New("--map \"routing_key='QUEUE'\"", "with celery-outbox, --map only says the queue of tasks that name none")
		}
		c.queue = literal(m.parts[0].text)
	}
	return nil
}

// assign writes the expressions. All of them stand in a block with an exception handler: none fails the application's INSERT.
func (s *source) assign(c *conversion, all []mapping) error {
	var entries []assignment // they add to what headers and properties are set to before
	for _, m := range all {
		if len(m.parts) == 0 {
			continue
		}
		text := s.text(m)
		variable, entry, _ := strings.Cut(m.target, ".")
		switch {
		case variable == "payload":
			s.body(c, m, text)
			continue
		case variable == "headers" && entry != "":
			entries = append(entries, withEntry(variable, entry, s.json(m, text)))
			continue
		case variable == "properties" && entry != "":
			entries = append(entries, withEntry(variable, entry, property(entry, text)))
			continue
		case variable == "message_id":
			text = s.uuid(m, text)
		case variable == "headers" || variable == "properties":
			text += "::jsonb"
		case strings.HasSuffix(variable, "_at"):
			found, _ := s.find(m.parts[0])
			if m.single() == "" || !slices.Contains([]string{"timestamptz", "timestamp", "date"}, found.Type) {
				return problem.New(fmt.Sprintf("--map %s=  # leaves it out", m.target), "%s needs one column with date and time, and not %s", m.target, strings.TrimSpace(found.Name+" "+found.Type))
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
	return assignment{variable, fmt.Sprintf("coalesce(%s, '{}') || CASE WHEN %s IS NULL THEN '{}' ELSE jsonb_build_object(%s, %[2]s) END", variable, value, literal(key))}
}

// text is the value as text.
func (s *source) text(m mapping) string {
	words := make([]string, len(m.parts))
	for i, p := range m.parts {
		if p.literal {
			words[i] = literal(p.text) + "::text"
			continue
		}
		found, _ := s.find(p)
		words[i] = field(found.Name) + "::text"
	}
	if len(words) == 1 {
		return words[0]
	}
	return "(" + strings.Join(words, " || ") + ")"
}

// json is the value as JSON: numbers and objects stay what they are.
func (s *source) json(m mapping, text string) string {
	if m.single() != "" {
		found, _ := s.find(m.parts[0])
		return "to_jsonb(" + field(found.Name) + ")"
	}
	return "to_jsonb(" + text + ")"
}

// uuid takes any text: one that is no uuid becomes one, always the same.
func (s *source) uuid(m mapping, text string) string {
	if found, _ := s.find(m.parts[0]); m.single() != "" && found.Type == "uuid" {
		return field(found.Name)
	}
	return s.asUUID(text)
}

func (s *source) asUUID(text string) string {
	const pattern = `'^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$'`
	return fmt.Sprintf("CASE WHEN %s ~* %s THEN %[1]s::uuid ELSE md5(%s || %[1]s)::uuid END", text, pattern, literal(s.table.String()+"/"))
}

func (s *source) body(c *conversion, m mapping, text string) {
	found, _ := s.find(m.parts[0])
	if m.single() == "" {
		found.Type = "text"
	}
	switch found.Type {
	case "json":
		c.assignments = append(c.assignments, assignment{"payload", field(found.Name)})
	case "jsonb":
		c.assignments = append(c.assignments, assignment{"payload", text + "::json"})
	case "bytea":
		c.assignments = append(c.assignments, assignment{"payload_bytes", field(found.Name)})
	default:
		c.body = text
	}
}

// field is a column of the row.
func field(name string) string { return "r." + outbox.QuoteIdentifier(name) }

// literal is a text in the body of a function, which it does not end.
func literal(s string) string {
	return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, `$`, `\x24`).Replace(s) + "'"
}
