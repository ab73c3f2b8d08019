package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

const (
	// checkWait is how long the page waits for a check before it shows what is known.
	checkWait = 3 * time.Second
	// checkTimeout bounds one check.
	checkTimeout = 2 * time.Minute
	// checkAgain is the age at which the page starts a new check.
	checkAgain = 10 * time.Second
)

// checks is the check of the page, which runs in the background: servers that do not answer must not delay a page. All
// users share one check.
type checks struct {
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		began time.Time
		done  chan struct{} // closed when the running check ends; nil: none runs
		ended time.Time
		// findings and failed are the outcome of the last check; both nil: there was none.
		findings []doctor.Finding
		failed   error
	}
}

// checkShown is the data of the page.
type checkShown struct {
	Summary string
	// Findings are problems and warnings, OK is what is well.
	Findings, OK []doctor.Finding
	// Age is that of the findings, Running how long a check has been running; "": none runs.
	Age, Running string
}

// Count is the number of checks that are ok.
func (c checkShown) Count() int64 { return int64(len(c.OK)) }

// checkPage shows the last check, and starts a new one if that is old.
func (c *Console) checkPage(ctx context.Context, _ *operator.Tables, _ *http.Request) (any, error) {
	waiting, stop := context.WithTimeout(ctx, c.checkWait)
	defer stop()
	select {
	case <-c.startCheck():
	case <-waiting.Done():
	}
	c.checks.mu.Lock()
	defer c.checks.mu.Unlock()
	now := &c.checks.mu
	if now.done == nil && now.failed != nil {
		return nil, now.failed
	}
	var shown checkShown
	if now.done != nil {
		shown.Running = show.Duration(time.Since(now.began))
	}
	if now.findings == nil {
		return shown, nil
	}
	shown.Age, shown.Summary = show.Duration(time.Since(now.ended)), doctor.Summary(now.findings)
	shown.Findings, shown.OK = doctor.Split(now.findings)
	return shown, nil
}

// startCheck starts a check if none runs and the last one is old. It returns a channel that is closed when no check
// runs.
func (c *Console) startCheck() <-chan struct{} {
	c.checks.mu.Lock()
	defer c.checks.mu.Unlock()
	now := &c.checks.mu
	if now.done != nil {
		return now.done
	}
	done := make(chan struct{})
	if time.Since(now.ended) < checkAgain || c.running.Err() != nil {
		close(done)
		return done
	}
	now.began, now.done = time.Now(), done
	c.checks.running.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(c.running, checkTimeout)
		defer cancel()
		findings, err := c.cfg.Check(ctx)
		c.checks.mu.Lock()
		defer c.checks.mu.Unlock()
		now.done, now.ended, now.findings, now.failed = nil, time.Now(), findings, err
		if err != nil {
			now.findings = nil
		}
	})
	return done
}

// run reports whether a check runs.
func (c *checks) run() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.done != nil
}
