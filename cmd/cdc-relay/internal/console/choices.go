package console

import (
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// choice is a change that a button offers.
type choice struct {
	Do    operator.Verb
	Label string
	// Ticked is the label while rows are ticked.
	Ticked string
	// Danger: it cannot be undone.
	Danger bool
}

// choices returns a button for each of these changes of a number of rows, if the console allows any.
func (c *Console) choices(number string, changes ...operator.Verb) (all []choice) {
	if !c.cfg.AllowChanges {
		return nil
	}
	for _, do := range changes {
		w := wordsOf(do)
		all = append(all, choice{do, strings.TrimSpace(w.verb+" "+number) + "…", w.verb + " ticked…", deletes(do)})
	}
	return all
}

// deletes reports whether a change cannot be undone.
func deletes(do operator.Verb) bool { return do == operator.Purge || do == operator.Delete }

// typed reports whether the user must type how many rows a change affects.
func typed(do operator.Verb) bool { return deletes(do) || do == operator.Replay }

// words are those of one change.
type words struct {
	verb, would string
	// one and many are what it changes.
	one, many string
	// path is the page with the rows.
	path string
}

func wordsOf(do operator.Verb) words {
	switch do {
	case operator.Retry:
		return words{"Resend", "would be due now", "waiting retry", "waiting retries", "/waiting"}
	case operator.Requeue:
		return words{"Resend", "would be resent", "dead letter", "dead letters", "/dead-letters"}
	case operator.Replay:
		return words{"Resend", "would be sent again", "published message", "published messages", "/published"}
	case operator.Delete:
		return words{"Delete", "would be deleted for good", "waiting message", "waiting messages", "/waiting"}
	case operator.Bury:
		return words{
			"Move to dead letters", "would become a dead letter", "waiting message", "waiting messages", "/waiting",
		}
	case operator.Purge:
		return words{"Delete", "would be deleted for good", "dead letter", "dead letters", "/dead-letters"}
	}
	return words{"Change", "", "row", "rows", "/dead-letters"} // there is no such change
}

// rows returns a number of rows in words.
func (w words) rows(n int64) string {
	if n == 1 {
		return "1 " + w.one
	}
	return show.Number(n) + " " + w.many
}
