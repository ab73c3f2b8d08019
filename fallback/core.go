package fallback

import (
	"github.com/cdc-relay/cdc-relay/internal/core"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Core is what sweeps need from the relay's core. It decides which rows leave now.
type Core interface {
	claimCore
	// View returns the state on which sweeps are planned, Capacity how much a claim may take now.
	View() core.View
	Capacity(page int) (rows, bytes int)

	// DueBegan, BacklogBegan and KeysBegan start a pass. BacklogFailed asks for the pass over keyless rows again.
	DueBegan()
	BacklogBegan(epoch int) (from int64, ok bool)
	BacklogFailed(from int64)
	KeysBegan() (pass int)
	// KeysEnded ends a pass over all keys. Complete is what SeesAllKeys reported at its first page.
	KeysEnded(pass int, complete bool)
	SeesAllKeys() bool
	// Saw records which transactions are visible.
	Saw(s outbox.Snapshot, epoch int, unnamed uint64)

	// TakeWanted returns keys to look up. Each is answered with Found or NotFound.
	TakeWanted(n int, yielding bool) (keys []string)
	LookAgain()
	WantKeys(keys []string)
	NotFound(asked []string)
	Found(asked []string, runs []outbox.Run, each int, seen outbox.Snapshot, epoch, n int) []outbox.Candidate
	// Free returns the rows that are not in memory.
	Free(rows []outbox.Candidate) (free []outbox.Candidate)

	// SetBoundary, ServerRestarted and Doubt record that others may have published rows.
	SetBoundary(id int64)
	ServerRestarted(id int64)
	Doubt()
}

// claimCore is what a claim needs from the core.
type claimCore interface {
	Begin(rows []outbox.Candidate, mostRows, mostBytes int) *core.Claim
	Locked(claim *core.Claim, locked []*outbox.Message, position uint64, valid bool) core.Out
	Open(claim *core.Claim) (flying, waiting int)
	CutRuns(claim *core.Claim)
	End(claim *core.Claim) core.Ending
	Ended(claim *core.Claim, e core.Ending, committed bool) core.Out
}
