package relay

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// lines limits the log lines about single messages, which one missing queue makes as many as messages. What it leaves
// out is in the table and in the metrics. All methods may be called at the same time.
type lines struct {
	mu struct {
		sync.Mutex
		of map[string]*limitedLines
	}
}

// limitedLines are the lines of one kind.
type limitedLines struct {
	limit *rate.Limiter
	// left is how many lines were left out since the last one, newest writes the newest of them.
	left   int
	newest func(leftOut int)
	timer  *time.Timer
}

const (
	// firstLines is how many lines of one kind are written at once, then one each linesEvery.
	firstLines = 10
	linesEvery = 10 * time.Second
	// mostKinds bounds the memory: an embedding publisher may have reasons of its own.
	mostKinds = 100
)

// write calls line with the number of lines of its kind that were left out before it, now or later; or leaves it out.
// The newest line of a kind is always written, at most linesEvery later.
func (l *lines) write(kind string, line func(leftOut int)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.of == nil {
		l.mu.of = make(map[string]*limitedLines)
	}
	if l.mu.of[kind] == nil && len(l.mu.of) >= mostKinds {
		kind = ""
	}
	one := l.mu.of[kind]
	if one == nil {
		one = &limitedLines{limit: rate.NewLimiter(rate.Every(linesEvery), firstLines)}
		l.mu.of[kind] = one
	}
	if one.limit.Allow() {
		line(one.left)
		one.left = 0
		return
	}
	if one.newest = line; one.left == 0 {
		one.timer = time.AfterFunc(linesEvery, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			one.flush()
		})
	}
	one.left++
}

// flush writes the newest lines that were left out.
func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.mu.of {
		one.flush()
	}
}

func (one *limitedLines) flush() {
	if one.left > 0 {
		one.timer.Stop()
		one.newest(one.left - 1)
		one.left, one.newest = 0, nil
	}
}
