package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/test/soak/history"
)

// conduct collects violations by relays that the history of messages does not show: an unexpected exit, a wrong exit
// code, an unhealthy /livez, a race, a panic.
type conduct struct {
	tell func(text string)

	mu       sync.Mutex
	now      func() time.Duration // the run's clock, once it runs
	findings []history.Finding
}

// add records a finding, of which it keeps only the first line: the logs have the rest.
func (c *conduct) add(text string) {
	text, _, _ = strings.Cut(text, "\n")
	c.mu.Lock()
	var at time.Duration
	if c.now != nil {
		at = c.now()
	}
	c.findings = append(c.findings, history.Finding{At: history.Milliseconds(at), What: text})
	c.mu.Unlock()
	c.tell(text)
}

func (c *conduct) clock(now func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

// readLogs searches the logs for fatal errors of the Go runtime. An out-of-memory error is expected: a fault causes it.
func (c *conduct) readLogs(folder string) error {
	logs, err := filepath.Glob(filepath.Join(folder, "*.log"))
	if err != nil {
		return fmt.Errorf("look for the logs of the relays: %w", err)
	}
	for _, log := range logs {
		if err := c.readLog(log); err != nil {
			return fmt.Errorf("read the log of a relay: %w", err)
		}
	}
	return nil
}

func (c *conduct) readLog(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(line, "WARNING: DATA RACE") || strings.HasPrefix(line, "panic: ") {
			c.add(fmt.Sprintf("%s has: %s", filepath.Base(name), strings.TrimSpace(line)))
		}
	}
}

// addTo adds the findings to a verdict, and what the processes took.
func (s *soak) addTo(verdict *history.Verdict) {
	processor, exits := s.world.Spent()
	verdict.Processor, verdict.Exits = history.Milliseconds(processor), exits
	s.conduct.mu.Lock()
	defer s.conduct.mu.Unlock()
	if len(s.conduct.findings) == 0 {
		return
	}
	const code history.Code = "conduct"
	const most = 20
	verdict.Result = history.Fail
	verdict.Violations = append(verdict.Violations, history.Violation{
		Code:  code,
		Count: len(s.conduct.findings),
		First: s.conduct.findings[:min(most, len(s.conduct.findings))],
	})
}
