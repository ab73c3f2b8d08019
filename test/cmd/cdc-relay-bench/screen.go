package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// screen shows the progress of the rounds: on a terminal a progress bar, otherwise a line for each run. It is safe for
// concurrent use.
type screen struct {
	out      io.Writer
	terminal bool
	began    time.Time

	mu         sync.Mutex
	runs, over int
	now        string
	drawn      time.Time
	shown      bool
}

func newScreen(out io.Writer, runs int) *screen {
	s := &screen{out: out, runs: runs, began: time.Now()}
	if file, ok := out.(*os.File); ok {
		s.terminal = term.IsTerminal(int(file.Fd()))
	}
	return s
}

// note writes a permanent line.
func (s *screen) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	fmt.Fprintln(s.out, redact(line))
}

// begin shows the name of the run that begins.
func (s *screen) begin(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = name
	s.draw(name)
}

// progress shows the state of the current run.
func (s *screen) progress(doing string, done, of int) {
	const redrawEvery = 100 * time.Millisecond
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.drawn) < redrawEvery {
		return
	}
	text := s.now + ": " + doing
	if of > 0 {
		text += fmt.Sprintf(" %d of %d", done, of)
	}
	s.draw(text)
}

// done shows a finished run.
func (s *screen) done(line string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over++
	s.erase()
	fmt.Fprintf(s.out, "%s: %s (%s)\n", s.now, line, took.Round(100*time.Millisecond))
	s.draw(s.now)
}

// end removes the bar.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
}

func (s *screen) erase() {
	if s.shown {
		_, _ = io.WriteString(s.out, "\r\x1b[K") // ignore errors of a closed terminal
	}
	s.shown = false
}

func (s *screen) draw(text string) {
	const width, most = 20, 110
	if !s.terminal {
		return
	}
	s.erase()
	full := width * s.over / max(s.runs, 1)
	bar := strings.Repeat("█", full) + strings.Repeat("░", width-full)
	line := fmt.Sprintf("%s %d of %d%s  %s", bar, s.over, s.runs, s.left(), text)
	if runes := []rune(line); len(runes) > most {
		line = string(runes[:most]) // a wrapped line could not be erased
	}
	_, _ = io.WriteString(s.out, line)
	s.drawn, s.shown = time.Now(), true
}

// left estimates the remaining time from the finished runs.
func (s *screen) left() string {
	if s.over == 0 {
		return ""
	}
	left := time.Since(s.began) / time.Duration(s.over) * time.Duration(s.runs-s.over)
	return ", " + left.Round(10*time.Second).String() + " left"
}
