package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen shows what goes on: on a terminal a block of lines at the end that is written again, otherwise line by line. It
// is safe for concurrent use.
type screen struct {
	out      io.Writer
	file     *os.File // the terminal, or nil
	terminal bool

	mu    sync.Mutex
	block []string // what stands at the end now
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		s.file, s.terminal = file, true
	}
	return s
}

// note writes a line that stays.
func (s *screen) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	block := s.block
	s.erase()
	fmt.Fprintln(s.out, redact(strings.TrimRight(text, "\n")))
	s.draw(block)
}

// show replaces the block; only on a terminal.
func (s *screen) show(block []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.erase()
	s.draw(block)
}

// erase takes the block away.
func (s *screen) erase() {
	if len(s.block) > 0 {
		fmt.Fprintf(s.out, "\x1b[%dA\x1b[J", len(s.block))
	}
	s.block = nil
}

func (s *screen) draw(block []string) {
	if !s.terminal {
		return
	}
	width := s.width()
	var b strings.Builder
	for _, line := range block {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width]) // a line that wraps could not be taken away
		}
		b.WriteString(line + "\n")
	}
	_, _ = io.WriteString(s.out, b.String()) // a terminal that is gone has nobody to tell
	s.block = block
}

func (s *screen) width() int {
	if width, _, err := term.GetSize(int(s.file.Fd())); err == nil && width > 1 {
		return width - 1
	}
	return 79
}
