package main

import (
	"log/slog"
	"time"

	"github.com/lmittmann/tint"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// logger writes to the standard error, because --publisher stdout uses the standard output.
func (p *process) logger(cfg *config) *slog.Logger {
	terminal := show.IsTerminal(p.terminal.Err)
	if cfg.logFormat == "json" || (cfg.logFormat == "auto" && !terminal) {
		return slog.New(slog.NewJSONHandler(p.terminal.Err, &slog.HandlerOptions{
			Level: cfg.logLevel, ReplaceAttr: durationAsText,
		}))
	}
	return slog.New(tint.NewTextHandler(p.terminal.Err, &tint.Options{
		Level:      cfg.logLevel,
		TimeFormat: time.TimeOnly + ".000",
		NoColor:    !terminal || p.terminal.NoColour,
		// The handler escapes line breaks itself, but lets codes for a terminal pass.
		ReplaceAttr: safeAttr,
	}))
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
