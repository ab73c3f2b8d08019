package operator

import (
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/celery"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Filter selects rows. All set conditions must hold; the zero Filter selects every row.
type Filter struct {
	// IDs and MessageIDs name rows: a row matches if either list has it. IDs that are empty and not nil match no row.
	IDs []int64
	// MessageIDs are message_ids, or ids of Celery tasks.
	MessageIDs []outbox.UUID
	RoutingKey *Pattern
	// Headers must all match.
	Headers []HeaderFilter
	// Exchange is a name, DefaultExchange, or "": rows that leave it to the relay.
	Exchange    *string
	OrderingKey *string
	// Reason is a code: failure_reason of a dead letter, or the start of last_error.
	Reason *string
	// State selects rows by state: for List the table, too, and for Delete rows of the outbox. Others do not use it.
	State State
	// Known decides the states.
	Known
	// OlderThan and NewerThan are ages: of a dead letter since its death, of a published message since it was
	// published, of a waiting row since it was created; 0: any.
	OlderThan, NewerThan time.Duration
	// Until and After are the same as times: at or before Until, later than After; nil: any.
	Until, After *time.Time
}

// Everything reports whether no condition is set.
func (f Filter) Everything() bool {
	return len(f.IDs)+len(f.MessageIDs)+len(f.Headers) == 0 && f.RoutingKey == nil && f.Exchange == nil &&
		f.OrderingKey == nil && f.Reason == nil && f.State == "" &&
		f.OlderThan == 0 && f.NewerThan == 0 && f.Until == nil && f.After == nil
}

// OnlyNamed reports whether IDs are the only condition.
func (f Filter) OnlyNamed() bool {
	named := f.Named()
	f.IDs, f.MessageIDs = nil, nil
	return named && f.Everything()
}

// In returns the filter for a state.
func (f Filter) In(state State) Filter {
	f.State = state
	return f
}

// HeaderFilter selects rows by a header that is a string, a number or a boolean.
type HeaderFilter struct {
	Name string
	// Pattern selects its value as text. The empty pattern also selects rows without such a header.
	Pattern Pattern
}

// ParseHeaders parses NAME=PATTERN,NAME=PATTERN. A pattern may have a comma after a backslash.
func ParseHeaders(text string) (all []HeaderFilter, err error) {
	for _, part := range splitAtCommas(text) {
		name, value, found := strings.Cut(part, "=")
		switch {
		case !found || name == "":
			return nil, fmt.Errorf("%q: want NAME=PATTERN, such as task=orders.*, and \\, for a comma in it", part)
		case celery.RepeatsBody(name):
			return nil, fmt.Errorf("%s repeats the body: want another header", name)
		}
		pattern, err := ParsePattern(value)
		if err != nil {
			return nil, err
		}
		all = append(all, HeaderFilter{name, pattern})
	}
	return all, nil
}

// splitAtCommas leaves a character after a backslash alone.
func splitAtCommas(text string) (parts []string) {
	from := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case ',':
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}

func (h HeaderFilter) addTo(c *conditions) {
	if h.Pattern.IsEmpty() {
		c.add("coalesce("+headerText("%[1]s")+", '') = ''", h.Name)
		return
	}
	h.Pattern.addTo(c, headerText("%[1]s"), h.Name)
}

// DefaultExchange names AMQP's default exchange, whose name is empty.
const DefaultExchange = "(default)"

// ExchangeText is the name of the exchange of a message for people and filters; "": the message leaves it to the relay.
func ExchangeText(name *string) string {
	switch {
	case name == nil:
		return ""
	case *name == "":
		return DefaultExchange
	}
	return *name
}

// exchangeText is ExchangeText for a column.
func exchangeText(column string) string {
	const sql = "CASE {c} WHEN ''::text THEN '" + DefaultExchange + "'::text ELSE coalesce({c}, ''::text) END"
	return strings.ReplaceAll(sql, "{c}", column)
}

// conditions are joined by AND; their values are arguments of the statement.
type conditions struct {
	all  []string
	args []any
}

// add adds a condition with a place, such as %s, for each value.
func (c *conditions) add(format string, values ...any) {
	places := make([]any, len(values))
	for i, value := range values {
		c.args = append(c.args, value)
		places[i] = fmt.Sprintf("$%d", len(c.args))
	}
	c.all = append(c.all, fmt.Sprintf(format, places...))
}

func (c *conditions) String() string {
	if len(c.all) == 0 {
		return "true"
	}
	return strings.Join(c.all, " AND ")
}

// where returns the condition on rows named r, and args with its arguments appended.
func (f Filter) where(from source, args []any) (string, []any) {
	c := conditions{args: args}
	switch named := (conditions{args: c.args}); {
	case f.Named():
		if len(f.IDs) > 0 {
			named.add("r.id = ANY(%s::bigint[])", f.IDs)
		}
		for _, id := range f.MessageIDs {
			named.addMessageID(id)
		}
		c.args = named.args
		c.all = append(c.all, "("+strings.Join(named.all, " OR ")+")")
	case f.IDs != nil:
		c.add("false")
	}
	if f.RoutingKey != nil {
		f.RoutingKey.addTo(&c, "r.routing_key")
	}
	for _, header := range f.Headers {
		header.addTo(&c)
	}
	if f.Exchange != nil {
		c.add(exchangeText("r.exchange")+" = %s", *f.Exchange)
	}
	if f.OrderingKey != nil {
		c.add("r.ordering_key = %s", *f.OrderingKey)
	}
	if f.Reason != nil {
		c.add("%s = ANY("+from.reasons+")", *f.Reason)
	}
	if f.State != "" && f.State.Waits() {
		c.add("r.state = %s", string(f.State))
	}
	if f.OlderThan != 0 {
		c.add(from.born+" <= (SELECT clock_timestamp()) - %s::interval", f.OlderThan)
	}
	if f.NewerThan != 0 {
		c.add(from.born+" > (SELECT clock_timestamp()) - %s::interval", f.NewerThan)
	}
	if f.Until != nil {
		c.add(from.born+" <= %s::timestamptz", *f.Until)
	}
	if f.After != nil {
		c.add(from.born+" > %s::timestamptz", *f.After)
	}
	return c.String(), c.args
}
