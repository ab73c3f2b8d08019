// Package program is what the soak and the benchmark share: they start cdc-relay, and consume what it publishes.
package program

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Process is a started program. Its output goes to a file.
type Process struct {
	*exec.Cmd
	log  string
	done chan struct{}
}

// Start starts a program, and appends its output to the file log.
func Start(cmd *exec.Cmd, log string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	defer func() { _ = file.Close() }() // the process has its own descriptor
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches it only through us
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &Process{Cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // ProcessState has the result
	}()
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// LogEnd returns the end of its output.
func (p *Process) LogEnd() string {
	content, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const most = 4096
	return string(content[max(0, len(content)-most):])
}

// Environment is the environment of this process without settings of a relay, and more.
func Environment(more ...string) []string {
	return append(slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "CDC_RELAY_")
	}), more...)
}

// Relay returns the absolute path of a cdc-relay; "": the one next to this program.
func Relay(file string) (string, error) {
	if file == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		file = filepath.Join(filepath.Dir(self), "cdc-relay")
	}
	file, err := exec.LookPath(file)
	if err != nil {
		return "", err
	}
	return filepath.Abs(file)
}

// Select returns what a list of names or patterns with commas between them selects; "": all. Each pattern must match at
// least one.
func Select[T any](list string, all []T, name func(T) string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	selected := make(map[string]bool)
	for pattern := range strings.SplitSeq(list, ",") {
		found := false
		for _, one := range all {
			fits, err := path.Match(strings.TrimSpace(pattern), name(one))
			if err != nil {
				return nil, fmt.Errorf("%q is not a pattern: %w", pattern, err)
			}
			if fits {
				selected[name(one)], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("%q fits no name", pattern)
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { return !selected[name(one)] }), nil
}

// Pause waits. It returns false once ctx has ended.
func Pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Poll calls ask until it returns true or an error, or ctx ends.
func Poll(ctx context.Context, ask func() (bool, error)) error {
	for {
		if yes, err := ask(); yes || err != nil {
			return err
		}
		if !Pause(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}
