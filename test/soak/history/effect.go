package history

import (
	"fmt"
	"io"
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

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
			effect = append(effect, fmt.Sprintf("%s %s: arrived, content %s %s",
				d.Message, m.Kind, d.Content, d.Damaged))
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
