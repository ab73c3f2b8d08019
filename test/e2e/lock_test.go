package e2e

import (
	"testing"
)

// A person has locked a row with FOR UPDATE and left. Its message was published; the row is deleted when the lock is
// released.
func TestALockedRowDelaysNoOther(t *testing.T) {
	t.Parallel()
	p := newProxied(t)
	r := p.works("--max-in-flight", "200")
	p.rabbit.BlackHole()
	p.insertMany(100)
	r.inFlight(100)
	release := p.holding(`SELECT 1 FROM outbox ORDER BY id LIMIT 1 FOR UPDATE`)
	p.rabbit.Resume()
	p.insertMany(2000)
	p.eventually("all arrive", func() bool { return p.arrived.distinct() == 2101 })
	p.eventually("all other rows are deleted", func() bool { return value[int](p.world, `SELECT count(*) FROM outbox`) == 1 })
	release()
	p.emptied()
	noDuplicates(t, p.arrived)
}
