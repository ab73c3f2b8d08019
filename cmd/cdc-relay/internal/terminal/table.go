package terminal

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// Table has aligned columns. Cells may contain colours and wide characters.
type Table struct {
	terminal Terminal
	writer   table.Writer
}

// Table returns a table with these headings, or without a header if there are none.
func (t Terminal) Table(columns ...string) *Table {
	g := &Table{terminal: t, writer: table.NewWriter()}
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	g.writer.SetStyle(style)
	g.writer.SuppressTrailingSpaces()
	if len(columns) > 0 {
		g.writer.AppendHeader(cells(columns))
	}
	return g
}

// Fit truncates rows to the width of the terminal. Without a terminal they stay whole, for grep and awk.
func (g *Table) Fit() *Table {
	if show.IsTerminal(g.terminal.Out) {
		style := g.writer.Style()
		style.Size.WidthMax = g.terminal.Width()
		style.Box.UnfinishedRow = "…"
	}
	return g
}

// Row adds a row.
func (g *Table) Row(columns ...string) { g.writer.AppendRow(cells(columns)) }

// Write prints the table, or nothing if it has no rows.
func (g *Table) Write() error {
	if g.writer.Length() == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(g.terminal.Out, g.writer.Render()); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

func cells(columns []string) table.Row {
	row := make(table.Row, len(columns))
	for i, column := range columns {
		row[i] = column
	}
	return row
}
