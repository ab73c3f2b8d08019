package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Check reads what a Recorder wrote and judges it. It returns an error if the reader fails or a line is not valid. A
// file
// that ends within its last line comes from a killed run; Check judges it up to there.
//
// It needs about 140 MB for a million messages in as many transactions, and half as much again while it grows: see
// message
// and transaction.
func Check(lines io.Reader) (*Verdict, error) {
	s := newState()
	in := bufio.NewReaderSize(lines, 1<<20)
	for {
		text, whole, err := readLine(in)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read line %d of the history: %w", s.lines+1, err)
		}
		if len(text) > 0 || whole {
			broken := s.read(text)
			switch {
			case broken == nil:
			case !whole && s.lines > 0 && cutOff(broken, text):
				s.cutShort = fmt.Sprintf("the file ends in the middle of line %d: the run was killed, or still runs",
					s.lines+1)
			default:
				return nil, fmt.Errorf("read line %d of the history: %w", s.lines+1, broken)
			}
		}
		if err != nil {
			break
		}
	}
	if s.lines == 0 {
		return nil, errors.New("read the history: it is empty; want the line of the run")
	}
	return s.verdict(), nil
}

// cutOff reports whether text is the beginning of a line, judging by the error of parsing it.
func cutOff(err error, text []byte) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax) && syntax.Offset >= int64(len(text))
}

// readLine returns the next line without its end, and whether it had one. The bytes are valid until the next call.
func readLine(in *bufio.Reader) (text []byte, whole bool, err error) {
	text, err = in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := append([]byte(nil), text...)
		var rest []byte
		rest, err = in.ReadBytes('\n')
		text = append(long, rest...)
	}
	if n := len(text); n > 0 && text[n-1] == '\n' {
		return text[:n-1], true, err
	}
	return text, false, err
}

// read adds one line. After an error nothing has changed.
func (s *state) read(text []byte) error {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return err
	}
	if err := l.valid(); err != nil {
		return err
	}
	if (s.lines == 0) != (l.Run != nil) {
		return errors.New("the line of the run must be the first, and the only one of its kind")
	}
	s.lines++
	if *l.At < s.lastAt {
		s.find(Contradiction, s.now,
			"line %d is of %s, and the line before it of %s: time went backwards", s.lines, at(*l.At), at(s.lastAt))
	}
	s.lastAt = *l.At
	s.now = max(s.now, *l.At)
	if s.ended {
		s.find(Contradiction, s.now, "line %d comes after the line that ends the history", s.lines)
	}
	s.take(&l)
	return nil
}

// take passes a valid line to its handler.
func (s *state) take(l *line) {
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
		s.faultHealed(*l.Healed)
	case l.Remaining != nil:
		s.remaining(l.Remaining)
	case l.Kept != nil:
		s.kept(*l.Kept)
	case l.End != nil:
		s.ended = true
		s.cutShort = l.End.CutShort
	}
}

// valid says what is wrong with a line that is JSON.
func (l *line) valid() error {
	events := 0
	for _, there := range [...]bool{
		l.Run != nil, l.Ending != nil, l.Ended != nil, l.Delivered != nil, l.Began != nil,
		l.Healed != nil, l.Remaining != nil, l.Kept != nil, l.End != nil,
	} {
		if there {
			events++
		}
	}
	if events != 1 {
		return fmt.Errorf("it has %d events; want 1", events)
	}
	if l.At == nil || *l.At < 0 {
		return errors.New("it has no time, or a negative one, in at")
	}
	if l.Ended != nil && outcomeOf(l.Ended.Outcome) == notHeard {
		return fmt.Errorf("the outcome %q is not known; known are %s, %s and %s",
			l.Ended.Outcome, Committed, RolledBack, Unknown)
	}
	if l.Ending == nil {
		return nil
	}
	for i := range l.Ending.Messages {
		m := &l.Ending.Messages[i]
		if _, known := kindOf(m.Kind); !known {
			return fmt.Errorf("message %s: the kind %q is not known", m.ID, m.Kind)
		}
		if m.Seq < 0 || m.Seq > maxSeq {
			return fmt.Errorf("message %s: the place %d in its key is not from 0 to %d", m.ID, m.Seq, maxSeq)
		}
	}
	return nil
}

// at formats a time of the run.
func at(d time.Duration) string { return d.Round(time.Millisecond).String() }
