package doctor

import "time"

// SetTimeout is for tests with servers that do not answer.
func (o *Options) SetTimeout(timeout time.Duration) { o.timeout = timeout }

// SetClock is for tests of clocks that differ.
func (o *Options) SetClock(now func() time.Time) { o.now = now }

// Pasteable is for tests of all fixes.
func Pasteable(line string) bool { return pasteable(line) }
