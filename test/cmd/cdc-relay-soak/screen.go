package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// screen shows the progress: on a terminal a block of lines that is redrawn, otherwise line by line. It is safe for
// concurrent use.
type screen struct {
	out      io.Writer
	file     *os.File // the terminal, or nil
	terminal bool

	mu    sync.Mutex
	block []string // the lines of the current block
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		s.file, s.terminal = file, true
	}
	return s
}

// note writes a permanent line.
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

// erase removes the block.
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
			line = string(runes[:width]) // a wrapped line could not be erased
		}
		b.WriteString(line + "\n")
	}
	_, _ = io.WriteString(s.out, b.String()) // ignore errors of a closed terminal
	s.block = block
}

func (s *screen) width() int {
	if width, _, err := term.GetSize(int(s.file.Fd())); err == nil && width > 1 {
		return width - 1
	}
	return 79
}
