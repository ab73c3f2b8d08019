package fallback

import (
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Core is what sweeps and claims need from the relay's core, which decides which rows leave now.
type Core interface {
	// View returns the state on which sweeps are planned, Capacity how much a claim may take now.
	View() core.View
	Capacity(page int) (rows, bytes int)

	// DueBegan, BacklogBegan and KeysBegan start a pass. BacklogFailed asks for the pass over keyless rows again.
	DueBegan() (again []outbox.Candidate)
	BacklogBegan(epoch int) (from int64, ok bool)
	BacklogFailed(from int64)
	KeysBegan() (pass int)
	// TakeLeft returns keyless rows that the stream has left in the table lately, with ids above one.
	TakeLeft(n int, above int64) []outbox.Candidate
	// TakeWanted returns keys to look up. Each is answered by ChooseRuns.
	TakeWanted(n int, yielding, again bool) (keys []string)
	// Saw records which transactions are visible.
	Saw(s outbox.Snapshot, epoch int, forgottenAt uint64)
	// SetBoundary and ServerRestarted record that others may have published rows.
	SetBoundary(id int64)
	ServerRestarted(id int64)

	// A claim gets its rows from one of the Choose methods, reports to Locked which of them it has locked, and ends
	// with Done. Between these, the core calls its Answered.
	ChooseRows(claim core.Claim, rows []outbox.Candidate, keys bool, most core.Most) (chosen core.Chosen, read int)
	ChooseRuns(claim core.Claim, found core.Found, keys int, most core.Most) core.Chosen
	Locked(claim core.Claim, rows []outbox.Candidate, l core.Lock) (valid bool)
	Done(e core.Ended) core.Out
	// LargeFailed lets other large rows have their turn before the claim is done.
	LargeFailed()
}
