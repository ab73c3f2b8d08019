// Package terminal is what a command reads and writes: the standard streams, and on them tables, JSON, questions,
// progress bars and output that repeats. It knows which of the streams are a terminal.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// Terminal has the standard streams of a command. They need not be a terminal.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	// NoColour: no colours, also on a terminal.
	NoColour bool

	err *buffered // below Err
}

// New returns a Terminal that writes characters which control a terminal as escapes, and no passwords to Err.
func New(in io.Reader, out, err io.Writer, noColour bool) Terminal {
	below := &buffered{out: err}
	return Terminal{
		In:       in,
		Out:      &show.SafeWriter{Out: out, Colours: show.IsTerminal(out)},
		Err:      &show.SafeWriter{Out: below, Colours: show.IsTerminal(err), Redacts: true},
		NoColour: noColour,
		err:      below,
	}
}

// Colours reports whether Out can show colours.
func (t Terminal) Colours() bool { return show.IsTerminal(t.Out) && !t.NoColour }

// Paint colours a text if Out can show colours.
func (t Terminal) Paint(colour text.Color, words string) string {
	if !t.Colours() {
		return words
	}
	return colour.EscapeSeq() + words + text.Reset.EscapeSeq()
}

// Width returns how many characters fit into a line of Out; 79 if it is not a terminal.
func (t Terminal) Width() int {
	if file, ok := show.Raw(t.Out).(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 1 {
			return width - 1
		}
	}
	return 79
}

// Verbatim returns Out for messages and SQL, which programs read. Only a terminal gets escapes.
func (t Terminal) Verbatim() io.Writer {
	if show.IsTerminal(t.Out) {
		return t.Out
	}
	return show.Raw(t.Out)
}

// JSON writes one value to Out.
func (t Terminal) JSON(value any) error { return t.encode(value, "  ") }

// JSONLine writes one value on one line, for output with many values.
func (t Terminal) JSONLine(value any) error { return t.encode(value, "") }

func (t Terminal) encode(value any, indent string) error {
	encoder := json.NewEncoder(t.Out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// NextPage writes how to get the next page of a list, if there is one. shown is how many rows the page had, and within
// how long it was searched for.
func (t Terminal) NextPage(shown int, cursor string, within time.Duration) {
	switch {
	case cursor == "":
	case shown == 0:
		fmt.Fprintf(t.Out, "none found within %s; to continue: --after %s\n", within, cursor)
	default:
		fmt.Fprintf(t.Out, "… more: --after %s\n", cursor)
	}
}
