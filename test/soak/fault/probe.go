package fault

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	probeEvery   = time.Second
	probeTimeout = 30 * time.Second
	// startupGrace is how long a new process may take to answer for the first time.
	startupGrace = 2 * time.Minute
)

// probe checks the health of one process every second, until the process ends or is told to end. An answer that says it
// is not live, or no answer in time, is a violation, except while the process is paused.
func (r *Relay) probe(run *relayRun) {
	defer close(run.probed)
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // a request in progress ends with the process
		select {
		case <-run.endAsked:
		case <-run.done:
		case <-ctx.Done():
		}
		cancel()
	}()
	began, up := time.Now(), false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		paused, before := r.pausedNow(run)
		if paused {
			continue
		}
		status, body, err := r.get(ctx, "/livez", probeTimeout)
		if _, after := r.pausedNow(run); after != before || ctx.Err() != nil {
			continue
		}
		switch {
		case err == nil && status == http.StatusOK:
			up = true
		case err == nil:
			r.violation("/livez says %d: %s", status, strings.TrimSpace(body))
		case up || time.Since(began) > startupGrace:
			r.violation("/livez does not answer: %v", err)
		}
	}
}

func (r *Relay) pausedNow(run *relayRun) (paused bool, pauses int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return run.paused, run.pauses
}

// get asks the relay's HTTP server. Each request has its own connection, so that none survives a pause.
func (r *Relay) get(ctx context.Context, path string, timeout time.Duration) (status int, body string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %s", timeout))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, "", fmt.Errorf("get %s: %w", path, orCause(ctx, err))
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, string(content), err
}

func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// Role returns the role that the relay reports: streaming, standby, sweeping, polling, starting or stopping; "" if it
// does not answer.
func (r *Relay) Role(ctx context.Context) string {
	const timeout = time.Second
	_, body, err := r.get(ctx, "/livez", timeout)
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(body, "(")
	role, _, _ := strings.Cut(rest, ")")
	return role
}

// Leader returns the relay that streams, or, with --mode poll, one that polls; nil if none does.
func (w *World) Leader(ctx context.Context) *Relay {
	for _, relay := range w.Relays {
		if run := relay.newest(); run == nil {
			continue
		} else if paused, _ := relay.pausedNow(run); paused {
			continue
		}
		if role := relay.Role(ctx); role == "streaming" || role == "polling" {
			return relay
		}
	}
	return nil
}

// AwaitLeader waits until a relay streams.
func (w *World) AwaitLeader(ctx context.Context) (*Relay, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, hangTimeout, fmt.Errorf("no relay streams within %s", hangTimeout))
	defer cancel()
	var leader *Relay
	err := poll(ctx, func() (bool, error) {
		leader = w.Leader(ctx)
		return leader != nil, nil
	})
	return leader, err
}
