package show

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
)

// Column is a column of a list, for the commands and the console.
type Column[T any] struct {
	Name string
	// Class says how the console sets it: word, key, text; "": as it is.
	Class string
	// Text is the whole value; "": there is none.
	Text func(row T) string
	// most is how many characters a command shows.
	most int
}

func column[T any](name, class string, text func(row T) string) Column[T] {
	return Column[T]{name, class, text, mostCell}
}

// Cell is the value for a command: printable, cut to fit, and a dash for none.
func (c Column[T]) Cell(row T) string { return OrElse(Shortened(c.Text(row), c.most), "-") }

// MessageColumns are the columns of a list: of the dead letters or the history, by the state, or of the outbox. Header
// is one of the message, for a column of its own; "": none.
func MessageColumns(list operator.State, header string) []Column[operator.Message] {
	columns := []Column[operator.Message]{
		column("ID", "", func(m operator.Message) string { return fmt.Sprint(m.ID) }),
	}
	switch list {
	case operator.Dead:
		columns = append(columns,
			column("Dead for", "word", func(m operator.Message) string { return Duration(m.ReadAt.Sub(m.DeadAt)) }),
			column("Reason", "word", Reason))
	case operator.Published:
		columns = append(columns,
			column("Published", "word", func(m operator.Message) string { return Time(m.PublishedAt) }),
			column("Ago", "word", func(m operator.Message) string { return Duration(m.ReadAt.Sub(m.PublishedAt)) }),
			column("Message ID", "word code", func(m operator.Message) string { return m.MessageID.String() }))
	default:
		columns = append(columns,
			column("Age", "word", func(m operator.Message) string { return Duration(m.Age()) }),
			column("State", "word", func(m operator.Message) string { return StateText(m.State) }),
			column("Next", "word", NextTime))
	}
	columns = append(columns,
		column("Exchange", "key", func(m operator.Message) string { return operator.ExchangeText(m.Exchange) }),
		column("Routing key", "key", func(m operator.Message) string { return m.RoutingKey }))
	if header != "" {
		columns = append(columns,
			column(header, "key", func(m operator.Message) string { return OrElse(m.Header(header), "-") }))
	}
	columns = append(columns,
		column("Ordering key", "key", func(m operator.Message) string { return ValueOr(m.OrderingKey, "") }))
	if list != operator.Published {
		columns = append(columns,
			column("Attempts", "", func(m operator.Message) string { return Number(int64(m.Attempts)) }),
			column("Last error", "text", func(m operator.Message) string { return ValueOr(m.LastError, "") }))
	}
	return columns
}

// KeyColumns are the columns of the list of ordering keys.
func (s Surroundings) KeyColumns() []Column[operator.Key] {
	return []Column[operator.Key]{
		column("Ordering key", "key", func(k operator.Key) string { return k.Key }),
		column("Behind", "", func(k operator.Key) string { return Count(k.Behind) }),
		column("First", "", func(k operator.Key) string { return fmt.Sprint(k.First.ID) }),
		column("State", "word", func(k operator.Key) string { return StateText(k.First.State) }),
		{"Why it waits", "why", s.Why, 160},
	}
}

// FailingColumns are the columns of the most frequent failures. Header is as for MessageColumns.
func FailingColumns(header string) []Column[Failing] {
	columns := []Column[Failing]{
		column("Reason", "", func(f Failing) string { return f.Reason }),
		column("Exchange", "", func(f Failing) string { return f.Exchange }),
		column("Routing key", "", func(f Failing) string {
			if f.RoutingKey == nil {
				return Plural(f.RoutingKeys, "key")
			}
			return *f.RoutingKey
		}),
	}
	if header != "" {
		columns = append(columns, column(header, "", func(f Failing) string { return ValueOr(f.Header, "") }))
	}
	return append(columns,
		column("Retrying", "", func(f Failing) string { return Number(f.Retrying) }),
		column("Dead", "", func(f Failing) string { return Number(f.Dead) }),
		Column[Failing]{"Example", "", func(f Failing) string { return f.Example }, 80})
}
