package terminal_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
)

func TestTableColumnsAreAligned(t *testing.T) {
	var out bytes.Buffer
	table := terminal.Terminal{Out: &out}.Table("name", "number").Fit()
	table.Row("short", "1")
	table.Row(text.FgRed.Sprint("a longer name"), "22")
	table.Row("größer", "3")
	if err := table.Write(); err != nil {
		t.Fatal(err)
	}
	const want = "name           number\nshort          1\n\x1b[31ma longer name\x1b[0m  22\ngrößer         3\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

func TestColoursAppearOnlyOnATerminal(t *testing.T) {
	if got := (terminal.Terminal{Out: &bytes.Buffer{}}).Paint(text.FgRed, "words"); got != "words" {
		t.Errorf("got %q", got)
	}
}

func TestStreamsAreSafe(t *testing.T) {
	var out, err bytes.Buffer
	tty := terminal.New(nil, &out, &err, false)
	_, _ = io.WriteString(tty.Out, "a\x1b[2J <b>\n")
	_, _ = io.WriteString(tty.Err, "amqp://u:s3cr3t@h\x1b[2J\n")
	_, _ = io.WriteString(tty.Verbatim(), "\x1b[2J\n")
	if got := out.String(); got != "a\\u001b[2J <b>\n\x1b[2J\n" {
		t.Errorf("the output is %q", got)
	}
	if got := err.String(); got != "amqp://u:***@h\\u001b[2J\n" {
		t.Errorf("the errors are %q", got)
	}
}

func TestJSONIsIndentedOrOneLine(t *testing.T) {
	var out bytes.Buffer
	tty := terminal.Terminal{Out: &out}
	value := struct {
		A string `json:"a"`
	}{"<b>"}
	if err := errors.Join(tty.JSON(value), tty.JSONLine(value)); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "{\n  \"a\": \"<b>\"\n}\n{\"a\":\"<b>\"}\n" {
		t.Errorf("got %q", got)
	}
}

func TestWatchRepeatsUntilItIsStoppedOrFails(t *testing.T) {
	failed := errors.New("no connection")
	for _, end := range []error{nil, failed} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			shown := 0
			began := time.Now()
			err := terminal.Terminal{}.Watch(ctx, time.Second, func(context.Context) (func() error, error) {
				if shown < 3 {
					return func() error { shown++; return nil }, nil
				}
				if end == nil {
					cancel()
				}
				return nil, errors.Join(end, ctx.Err())
			})
			cancel()
			if !errors.Is(err, end) || shown != 3 || time.Since(began) != 3*time.Second {
				t.Errorf("got %v after %d results and %s", err, shown, time.Since(began))
			}
		})
	}
}
