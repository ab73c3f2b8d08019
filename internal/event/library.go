package event

import (
	"log"
	"log/slog"
)

// Library returns what a library logs its lines of text to: they become lines of this log.
func Library(to *slog.Logger) *log.Logger {
	return slog.NewLogLogger(to.With("event", LibraryReported).Handler(), slog.LevelWarn)
}
