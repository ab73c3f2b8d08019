package terminal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
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

// stream is a standard error whose reader takes something only while takes is open, and that fails with err.
type stream struct {
	takes chan struct{}
	mu    sync.Mutex
	err   error
	text  strings.Builder
	calls int
}

func (s *stream) Write(p []byte) (int, error) {
	<-s.takes
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.err != nil {
		return s.text.Write(p[:len(p)/2]) //nolint:errcheck // never fails
	}
	return s.text.Write(p)
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

type failing struct{ *stream }

func (f failing) Write(p []byte) (int, error) {
	n, _ := f.stream.Write(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	return n, f.err
}

func detached(s *stream) (terminal.Terminal, *int64) {
	tty, told := terminal.New(nil, io.Discard, failing{s}, true), new(int64)
	tty.DetachErr(func(dropped int64) {
		*told += dropped
		fmt.Fprintf(tty.Err, "%d dropped\n", dropped)
	})
	return tty, told
}

func TestALogThatNobodyReadsDropsLinesAndCountsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{takes: make(chan struct{})}
		tty, told := detached(s)
		line, lines := strings.Repeat("x", 99)+"\n", 50_000 // 5 MB
		for range lines {
			fmt.Fprint(tty.Err, line)
		}
		tty.FlushErr(time.Second) // it waits no longer for nobody
		dropped := tty.DroppedLines()
		if s.calls > 0 || dropped < 30_000 || dropped >= int64(lines) || *told != 0 {
			t.Fatalf("%d writes, %d dropped, %d told", s.calls, dropped, *told)
		}
		close(s.takes)
		synctest.Wait()
		want := strings.Repeat(line, lines-int(dropped)) + fmt.Sprintf("%d dropped\n", dropped)
		if got := s.text.String(); got != want || *told != dropped {
			t.Errorf("got %d bytes, want %d; told %d, want %d", len(got), len(want), *told, dropped)
		}
	})
}

func TestALogThatFailsIsTriedAgainWithTheNextLineOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{takes: make(chan struct{})}
		close(s.takes)
		s.fail(errors.New("no space left on device"))
		tty, told := detached(s)
		fmt.Fprint(tty.Err, "first\n")
		synctest.Wait()
		fmt.Fprint(tty.Err, "second\n")
		synctest.Wait()
		if s.calls != 2 || tty.DroppedLines() != 2 || *told != 0 {
			t.Errorf("%d writes, %d dropped, %d told", s.calls, tty.DroppedLines(), *told)
		}
		s.fail(nil)
		fmt.Fprint(tty.Err, "third\n")
		synctest.Wait()
		if got := s.text.String(); !strings.HasSuffix(got, "\nthird\n2 dropped\n") || *told != 2 {
			t.Errorf("got %q, told %d", got, *told)
		}
	})
}
