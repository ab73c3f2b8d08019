package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// Values of --format.
const (
	formatTable = "table"
	formatJSON  = "json"
)

func formatSetting() *setting {
	return &setting{
		name: "format", value: "table|json", byDefault: formatTable,
		usage: "table for people; json for scripts, with stable names.",
		set:   func(c *config, text string) error { c.format = text; return oneOf(text, formatTable, formatJSON) },
	}
}

// jsonSetting comes after formatSetting in the list. It overrides a format that no flag sets.
func jsonSetting() *setting {
	return flagOnly(&setting{
		name: "json", usage: "Short for --format json.",
		set: func(c *config, text string) error {
			on, err := strconv.ParseBool(text)
			if err != nil {
				return fmt.Errorf("%q: want true or false", text)
			}
			if format := c.given["format"]; on && format.source == fromFlag && format.text != formatJSON {
				return fmt.Errorf("contradicts --format %s", format.text)
			}
			if on {
				c.format = formatJSON
			}
			return nil
		},
	})
}

// writeJSON writes one value to the standard output.
func (p *process) writeJSON(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// grid is a table with aligned columns. Cells may contain colours and wide characters.
type grid struct {
	process *process
	writer  table.Writer
}

// newTable returns a table with these headings, or without a header if there are none.
func (p *process) newTable(columns ...string) *grid {
	g := &grid{process: p, writer: table.NewWriter()}
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

// fit truncates rows to the width of the terminal. Without a terminal they stay whole, for grep and awk.
func (g *grid) fit() *grid {
	if show.IsTerminal(g.process.stdout) {
		style := g.writer.Style()
		style.Size.WidthMax = demoScreen{out: g.process.stdout}.width()
		style.Box.UnfinishedRow = "…"
	}
	return g
}

func (g *grid) Row(columns ...string) { g.writer.AppendRow(cells(columns)) }

// write prints the table, or nothing if it has no rows.
func (g *grid) write() error {
	if g.writer.Length() == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(g.process.stdout, g.writer.Render()); err != nil {
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

// colours reports whether the standard output can show colours.
func (p *process) colours() bool { return show.IsTerminal(p.stdout) && !p.noColor() }

// paint colours a text if the standard output can show colours.
func (p *process) paint(colour text.Color, words string) string {
	if !p.colours() {
		return words
	}
	return colour.EscapeSeq() + words + text.Reset.EscapeSeq()
}

// writeJSONLine writes one value on one line, for output with many values.
func (p *process) writeJSONLine(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

func (p *process) makeOutputSafe() {
	p.stdout = &show.SafeWriter{Out: p.stdout, Colours: show.IsTerminal(p.stdout)}
	p.stderr = &show.SafeWriter{Out: p.stderr, Colours: show.IsTerminal(p.stderr), Redacts: true}
}

// verbatim returns the standard output for messages and SQL, which programs read. Only a terminal gets escapes.
func (p *process) verbatim() io.Writer {
	if show.IsTerminal(p.stdout) {
		return p.stdout
	}
	return show.Raw(p.stdout)
}
