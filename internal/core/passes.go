package core

import "github.com/cdc-relay/cdc-relay/internal/pgsnapshot"

// Saw records a snapshot that was taken in this epoch; later queries see at least as much. ForgottenAt is the number of
// a View before the snapshot; if not 0, the snapshot names all transactions in progress.
func (c *Core) Saw(s pgsnapshot.Snapshot, epoch int, forgottenAt uint64) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch {
		return // the snapshot may be of another server
	}
	if forgottenAt != 0 && forgottenAt == c.mu.unseen.forgottenAt {
		c.mu.unseen.name(s)
		c.wantBacklog(anyID) // an earlier pass may have missed rows that became visible since
	}
	c.saw(s)
}

func (c *Core) saw(s pgsnapshot.Snapshot) {
	if from := c.mu.unseen.saw(s); from != noID {
		c.wantBacklog(from)
	}
}

// BacklogBegan starts a pass over the keyless rows. Rows left from now on ask for another pass.
func (c *Core) BacklogBegan(epoch int) (from int64, ok bool) {
	c.lock()
	defer c.mu.Unlock()
	if epoch != c.mu.term.epoch {
		return 0, false
	}
	from, c.mu.backlog = c.mu.backlog, noID
	return from, true
}

// BacklogFailed asks for the pass again.
func (c *Core) BacklogFailed(from int64) {
	c.lock()
	defer c.mu.Unlock()
	if c.mu.term.leader {
		c.wantBacklog(from)
	}
}

// DueBegan starts a sweep of due rows. Rows that get a time from now on ask for another sweep. Again are rows without a
// key whose time has come.
func (c *Core) DueBegan() (again []int64) {
	c.lock()
	defer c.mu.Unlock()
	again, c.mu.due, c.mu.dueAgain = c.mu.dueAgain, false, nil
	return again
}

// KeysBegan starts a pass over all keys and returns its number.
func (c *Core) KeysBegan() (pass int) {
	c.lock()
	defer c.mu.Unlock()
	c.mu.keys.pass++
	c.mu.keys.complete = false
	return c.mu.keys.pass
}

// TakeLeft returns the ids of up to n of the newest keyless rows of small transactions that the stream has left in the
// table, from one on. A pass has read the rows below it.
func (c *Core) TakeLeft(n int, from int64) (ids []int64) {
	c.lock()
	defer c.mu.Unlock()
	for left := &c.mu.left; len(ids) < n && len(*left) > 0; *left = (*left)[:len(*left)-1] {
		if id := (*left)[len(*left)-1]; id >= from {
			ids = append(ids, id)
		}
	}
	return ids
}
