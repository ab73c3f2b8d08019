package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

// LivenessFile is written while the relay is live, for probes that check the age of a file. The empty name means no
// file.
type LivenessFile string

// NewLivenessFile fails at the start if the file cannot be written.
func NewLivenessFile(name string) (LivenessFile, error) {
	file := LivenessFile(name)
	if name == "" {
		return file, nil
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return "", failure.Usagef("--liveness-file %s: is a directory or a device, want the name of a file", name)
	}
	err := file.write(time.Now())
	if err == nil {
		err = file.remove() // the relay is not live yet
	}
	if err != nil {
		var path *fs.PathError // of a temporary file
		if errors.As(err, &path) {
			err = path.Err
		}
		return "", fmt.Errorf("--liveness-file %s: %w", name, err)
	}
	return file, nil
}

// Keep writes the file every second while the relay is live, until ctx is done.
func (f LivenessFile) Keep(ctx context.Context, reporter Reporter, log *slog.Logger) {
	if f == "" {
		return
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	failing := false
	for {
		if reporter.Health().Live {
			err := f.write(time.Now())
			if err != nil && !failing {
				log.Warn("cannot write the liveness file: the supervisor may restart this relay; retrying every second",
					"event", event.LivenessFileFailed, "error", err)
			}
			failing = err != nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if err := f.remove(); err != nil {
				log.Warn("cannot remove the liveness file: its probe may report this relay as live",
					"event", event.LivenessFileFailed, "error", err)
			}
			return
		}
	}
}

// write replaces the file atomically, so that no probe reads half of it.
func (f LivenessFile) write(now time.Time) error {
	temp, err := os.CreateTemp(filepath.Dir(string(f)), "."+filepath.Base(string(f))+"-*")
	if err != nil {
		return err
	}
	_, err = temp.WriteString(now.UTC().Format(time.RFC3339) + "\n")
	err = errors.Join(err, temp.Chmod(0o644), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), string(f))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return nil
}

func (f LivenessFile) remove() error {
	if err := os.Remove(string(f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
