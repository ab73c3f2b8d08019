package main

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
)

// logger writes to the standard error, because --publisher stdout uses the standard output.
func (p *process) logger(cfg *config) *slog.Logger {
	terminal := isTerminal(p.stderr)
	if cfg.logFormat == "json" || (cfg.logFormat == "auto" && !terminal) {
		return slog.New(slog.NewJSONHandler(p.stderr, &slog.HandlerOptions{
			Level: cfg.logLevel, ReplaceAttr: durationAsText,
		}))
	}
	return slog.New(tint.NewTextHandler(p.stderr, &tint.Options{
		Level:      cfg.logLevel,
		TimeFormat: time.TimeOnly + ".000",
		NoColor:    !terminal || p.noColor(),
	}))
}

// durationAsText writes 27.1s; slog would write nanoseconds.
func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// noColor implements the convention of no-color.org.
func (p *process) noColor() bool {
	value, _ := p.lookupEnv("NO_COLOR")
	return value != ""
}

func isTerminal(w any) bool {
	if wrapped, ok := w.(interface{ Unwrap() io.Writer }); ok {
		w = wrapped.Unwrap()
	}
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
