package console

import (
	"fmt"
	"html/template"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// table is a list of rows; on a phone, each row is a card. It shows no column that is empty in all of them.
type table struct {
	Label string
	Heads []string
	Rows  []tableRow
	// Ticks: the rows have boxes to choose some of them for a change.
	Ticks bool
}

type tableRow struct {
	// ID is the message_id, "" if the row cannot be ticked; Name tells the row apart.
	ID, Name string
	Cells    []cell
}

// cell is a value under its head.
type cell struct {
	Head, Text string
	// Class says how it is set: word, key, text; "": as it is.
	Class string
	// Link leads to it; Level makes it a colored label.
	Link, Level string
	// At is shown in place of the text; zero: the text.
	At time.Time
}

// cellOf is a value of a list.
func cellOf[T any](column show.Column[T], row T) cell {
	return cell{Head: column.Name, Text: column.Text(row), Class: column.Class}
}

// addMessage adds a message in these columns. The ID leads to its page, and the state is a label.
func (t *table) addMessage(columns []show.Column[operator.Message], m operator.Message) *tableRow {
	row := tableRow{ID: m.MessageID.String(), Name: fmt.Sprint(m.ID)}
	for _, column := range columns {
		c := cellOf(column, m)
		switch c.Head {
		case "ID":
			c.Link = messageLinkTo(m.ID)
		case "State":
			c.Level = string(m.State)
		case "Attempts":
			c.Text = strings.TrimPrefix(c.Text, "0") // so that a list without attempts does not have the column
		}
		row.Cells = append(row.Cells, c)
	}
	t.add(row)
	return &t.Rows[len(t.Rows)-1]
}

func messageLinkTo(id int64) string { return fmt.Sprintf("/message?id=%d", id) }

func (t *table) add(row tableRow) { t.Rows = append(t.Rows, row) }

// done removes the columns without a value, and names the others.
func (t *table) done() {
	used := map[string]bool{"Routing key": true}
	for _, row := range t.Rows {
		for _, c := range row.Cells {
			used[c.Head] = used[c.Head] || c.Text != "" || !c.At.IsZero()
		}
	}
	for i := range t.Rows {
		t.Rows[i].Cells = slices.DeleteFunc(t.Rows[i].Cells, func(c cell) bool { return !used[c.Head] })
	}
	if len(t.Rows) > 0 {
		for _, c := range t.Rows[0].Cells {
			t.Heads = append(t.Heads, c.Head)
		}
	}
}

// timed marks the times in a text, so that the script can show them in the zone of the browser.
func timed(text string) template.HTML {
	times := regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`)
	escaped := times.ReplaceAllStringFunc(template.HTMLEscapeString(text), func(at string) string {
		return `<time datetime="` + strings.Replace(at, " ", "T", 1) + `">` + at + `</time>`
	})
	return template.HTML(escaped) //nolint:gosec // escaped
}

// clock is a time without its day, for the script, too.
func clock(at time.Time, layout string) template.HTML {
	at = at.UTC()
	return template.HTML(`<time datetime="` + at.Format("2006-01-02T15:04:05.000Z") + `">` + //nolint:gosec // digits
		at.Format(layout) + `</time>`)
}
