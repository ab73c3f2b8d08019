package adopt

import (
	"embed"
	"slices"
	"strings"
)

// The layouts that need no Set. A file of layouts/ describes each.
const (
	Debezium     = "debezium"
	CeleryOutbox = "celery-outbox"
	Watermill    = "watermill"
	CAP          = "cap"
	Namastack    = "namastack"
)

// Layouts returns the names in the order of the help page.
func Layouts() []string { return []string{Debezium, CeleryOutbox, Watermill, CAP, Namastack} }

// Usage returns what the layout is, for the help page.
func Usage(layout string) string { return layoutOf(layout).get("usage") }

//go:embed layouts/*.sql
var files embed.FS

// lines are those of a layout's file: "NAME: TEXT", where a text goes on in indented lines. A name is one of
//   - usage, and table: the usual name of the table
//   - waiting: the condition for the rows that are still to be sent; without it, only the user knows
//   - only: the condition for the rows that are messages; the others stay in the table
//   - missing.NAME: the value of a column that some versions of the table lack
//   - older.NAME: the flags for the table of an older version, which has this column
//   - then: statements that run after all expressions
//   - error: why the row is no message; null: it is one
//   - a column of the outbox, headers.NAME or properties.NAME: the expression for it
//   - any other: an expression that later ones may use as a column
//
// Expressions may also use the columns of the table, waited (it is no new row), and from_table, the table's name.
type lines []line

type line struct{ name, text string }

// layoutOf returns the layout of a name; unknown, or "": none.
func layoutOf(name string) (all lines) {
	file, _ := files.ReadFile("layouts/" + name + ".sql")
	for text := range strings.Lines(string(file)) {
		switch name, rest, _ := strings.Cut(text, ":"); {
		case strings.HasPrefix(text, "--"):
		case text[0] == ' ':
			all[len(all)-1].text += text
		default:
			all = append(all, line{name, strings.TrimPrefix(rest, " ")})
		}
	}
	return all
}

// get returns the text of a name; "": it has none.
func (l lines) get(name string) string {
	if i := l.index(name); i >= 0 {
		return strings.TrimSpace(l[i].text)
	}
	return ""
}

func (l lines) index(name string) int {
	return slices.IndexFunc(l, func(one line) bool { return one.name == name })
}

// only returns the condition for the rows that are messages; "": all are.
func (r Request) only() string {
	conditions := []string{layoutOf(r.Layout).get("only"), r.Only}
	conditions = slices.DeleteFunc(conditions, func(text string) bool { return text == "" })
	return join(conditions, " AND ", func(text string) string { return "(" + ended(text) + ")" })
}
