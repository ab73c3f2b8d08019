package history

import (
	"slices"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// find returns the position of the first line of a kind.
func (w *world) find(what func(*line) bool) int {
	return slices.IndexFunc(w.lines, func(l line) bool { return what(&l) })
}

func (w *world) firstArrival(id outbox.UUID) int {
	return w.find(func(l *line) bool { return l.Delivered != nil && l.Delivered.Message == id })
}

// insert inserts lines after a position, with its time.
func (w *world) insert(after int, lines ...line) {
	for i := range lines {
		lines[i].At = w.lines[after].At
	}
	w.lines = slices.Insert(w.lines, after+1, lines...)
}

func (w *world) remove(what func(*line) bool) {
	w.lines = slices.DeleteFunc(w.lines, func(l line) bool { return what(&l) })
}
