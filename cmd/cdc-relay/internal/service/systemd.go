package service

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Supervisor is systemd, if it started the process with Type=notify.
type Supervisor struct {
	// watchdog is the longest time between two signs of life; 0: no limit.
	watchdog time.Duration
	failed   bool // for the log
}

const (
	// startTimeout is how long a start may check the database before it counts as done. Later delays are outside its
	// control.
	startTimeout = 10 * time.Second
	// superviseEvery is the longest time between two status updates.
	superviseEvery = time.Second
)

// Supervised returns nil if nobody supervises the process.
func Supervised() (*Supervisor, error) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil, nil //nolint:nilnil // nobody supervises
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, failure.Usagef("WATCHDOG_USEC and WATCHDOG_PID: want the whole numbers that systemd sets")
	}
	return &Supervisor{watchdog: watchdog}, nil
}

// Keep reports the relay's state until ctx is done. stopping is done when the relay is to end. Only a live relay
// notifies the watchdog.
func (s *Supervisor) Keep(ctx, stopping context.Context, reporter Reporter, log *slog.Logger) {
	if s == nil {
		return
	}
	every := superviseEvery
	if s.watchdog > 0 {
		every = min(every, s.watchdog/3)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	asked := stopping.Done()
	ready, waited := false, false
	for {
		health := reporter.Health()
		state := []string{"STATUS=" + statusOf(health)}
		if health.Live && s.watchdog > 0 {
			state = append(state, daemon.SdNotifyWatchdog)
		}
		if !ready && (health.Role != "starting" || waited) {
			ready = true
			state = append(state, daemon.SdNotifyReady)
		}
		s.tell(log, state...)
		select {
		case <-ticker.C:
		case <-timeout.C:
			waited = true
		case <-asked:
			asked = nil
			s.tell(log, daemon.SdNotifyStopping)
		case <-ctx.Done():
			if asked != nil && stopping.Err() != nil { // it stopped as soon as it was told to
				s.tell(log, daemon.SdNotifyStopping)
			}
			return
		}
	}
}

// statusOf returns one line: the role, and the first part that is not ready.
func statusOf(health relay.Health) string {
	status := verdict("ready", health.Ready)
	if health.Role != "" {
		status += " (" + health.Role + ")"
	}
	for _, part := range health.Parts {
		if !part.Ready || !part.Live {
			return status + "; " + part.Name + ": " + string(show.Redact([]byte(show.OneLine(part.Detail))))
		}
	}
	return status
}

func (s *Supervisor) tell(log *slog.Logger, state ...string) {
	_, err := daemon.SdNotify(false, strings.Join(state, "\n"))
	if err != nil && !s.failed {
		log.Warn("cannot notify systemd: it may restart this relay; retrying",
			"event", event.SystemdFailed, "error", err)
	}
	s.failed = err != nil
}
