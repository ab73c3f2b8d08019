package main

import (
	"log/slog"
	"time"

	"github.com/lmittmann/tint"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

// logger returns the log of a service. It writes to the standard error, because --publisher stdout uses the standard
// output, and never waits for its reader.
func (p *process) logger(cfg *config) *slog.Logger {
	if p.log != nil {
		return p.log
	}
	p.log = event.Limited(slog.New(p.logHandler(cfg)))
	p.terminal.DetachErr(func(dropped int64) {
		p.log.Warn("log lines dropped: their reader was slow or failed; messages unaffected",
			"event", event.LogLinesDropped, "lines", dropped)
	})
	// Some libraries log to the default of the process, net/http among them.
	slog.SetDefault(p.log.With("event", event.LibraryReported))
	slog.SetLogLoggerLevel(slog.LevelWarn)
	return p.log
}

// logsJSON reports whether programs read the log.
func (p *process) logsJSON(cfg *config) bool {
	return cfg.logFormat == "json" || (cfg.logFormat == "auto" && !show.IsTerminal(p.terminal.Err))
}

func (p *process) logHandler(cfg *config) slog.Handler {
	if p.logsJSON(cfg) {
		return slog.NewJSONHandler(p.terminal.Err, &slog.HandlerOptions{
			Level: cfg.logLevel, ReplaceAttr: durationAsText,
		})
	}
	return tint.NewTextHandler(p.terminal.Err, &tint.Options{
		Level:      cfg.logLevel,
		TimeFormat: time.TimeOnly + ".000",
		NoColor:    !show.IsTerminal(p.terminal.Err) || p.terminal.NoColour,
		// The handler escapes line breaks itself, but lets codes for a terminal pass.
		ReplaceAttr: safeAttr,
	})
}

// durationAsText writes 27.1s; slog would write nanoseconds.
func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// safeAttr writes control characters in a name or a value as escapes, except line breaks.
func safeAttr(_ []string, a slog.Attr) slog.Attr {
	a.Key = show.SafeText(a.Key)
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(show.SafeText(a.Value.String()))
	case slog.KindAny:
		if _, isLevel := a.Value.Any().(slog.Level); !isLevel {
			a.Value = slog.StringValue(show.SafeText(a.Value.String()))
		}
	}
	return a
}
