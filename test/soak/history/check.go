package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Check reads what a Recorder wrote until it was closed, and judges it.
func Check(lines io.Reader) (*Verdict, error) {
	s := newState()
	if err := read(lines, s.take); err != nil {
		return nil, err
	}
	return s.verdict(), nil
}

// read calls take for each line.
func read(lines io.Reader, take func(*line)) error {
	in := json.NewDecoder(lines)
	for n := 1; ; n++ {
		var l line
		if err := in.Decode(&l); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read line %d of the history: %w", n, err)
		}
		take(&l)
	}
}

// take passes a line to its handler.
func (s *state) take(l *line) {
	s.lines++
	s.now = l.At
	switch {
	case l.Run != nil:
		s.run = *l.Run
	case l.Ending != nil:
		s.ending(l.Ending)
	case l.Ended != nil:
		s.endedAs(l.Ended)
	case l.Delivered != nil:
		s.delivered(l.Delivered)
	case l.Began != nil:
		s.faultBegan(l.Began)
	case l.Healed != nil:
		s.faults[s.faultIndex[*l.Healed]].healed = s.now
	case l.Remaining != nil:
		s.remaining(l.Remaining)
	case l.Kept != nil:
		s.transactions[s.byID[*l.Kept]].kept = true
	}
}

// at formats a time of the run.
func at(d time.Duration) string { return d.Round(time.Millisecond).String() }
