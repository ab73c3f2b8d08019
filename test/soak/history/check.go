package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Check reads what a Recorder wrote until it was closed, and judges it. It also reports what the history does not show:
// the conduct of the relays.
func Check(lines io.Reader, conduct ...Finding) (*Verdict, error) {
	s := newState()
	if err := read(lines, s.take); err != nil {
		return nil, err
	}
	for _, found := range conduct {
		s.find(Conduct, found.At, "%s", found.What)
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

// Effect returns what a history has in common with each other run of the same messages, as sorted lines: the content of
// each message that arrived, the order of the first arrivals of each key, and what the tables contain at the end.
// Duplicates, times and faults are not part of it.
func Effect(lines io.Reader) ([]string, error) {
	var effect []string
	told := make(map[outbox.UUID]Message)
	newest := make(map[string]int) // by key: the place of the message that arrived last
	arrived := make(map[outbox.UUID]bool)
	err := read(lines, func(l *line) {
		switch {
		case l.Ending != nil:
			for _, m := range l.Ending.Messages {
				told[m.ID] = m
			}
		case l.Delivered != nil:
			d := l.Delivered
			m := told[d.Message]
			effect = append(effect, fmt.Sprintf("%s %s: arrived, %s", d.Message, m.Kind, d.Content))
			if !arrived[d.Message] && m.Key != "" {
				effect = append(effect, fmt.Sprintf("%s %s: place %d of key %s, after place %d",
					d.Message, m.Kind, m.Seq, m.Key, newest[m.Key]))
				newest[m.Key] = m.Seq
			}
			arrived[d.Message] = true
		case l.Remaining != nil:
			r := l.Remaining
			effect = append(effect, fmt.Sprintf("%s %s: in %s, %s after %d attempts",
				r.Message, told[r.Message].Kind, tableOf(r.DeadLetter), r.Reason, r.Attempts))
		}
	})
	slices.Sort(effect)
	return slices.Compact(effect), err
}
