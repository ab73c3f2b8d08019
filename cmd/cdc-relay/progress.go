package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// changeBatch is how many rows one transaction changes.
const changeBatch = 1000

// progress shows a progress bar on the standard error if that is a terminal. end removes the bar.
func (p *process) progress(what string) (progress operator.Progress, end func()) {
	if !show.IsTerminal(p.stderr) {
		return func(int64, int64) {}, func() {}
	}
	var bar *progressbar.ProgressBar
	return func(done, total int64) {
			if total <= changeBatch {
				return // the work was too quick to show a bar
			}
			if bar == nil {
				bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(show.Raw(p.stderr)), progressbar.OptionSetDescription(what),
					progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("rows"),
					progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
			}
			_ = bar.Set64(done) // an error of the terminal must not stop the work
		}, func() {
			if bar != nil {
				_ = bar.Clear()
			}
		}
}

// consent asks before a command changes rows, unless --yes is given.
type consent struct {
	process *process
	cfg     *config
	// question is asked about the number of rows; notDone is what the error says after another answer than yes.
	question func(total int64) string
	notDone  string
	// harmless: the command sends messages that have not arrived. It asks only on a terminal, and not for named messages.
	harmless bool

	matched int64
	// refused is the error of agree.
	refused error
}

// agree returns an operator.Agreed. The question goes to the standard error: a script may read the standard output.
func (c *consent) agree(ctx context.Context) operator.Agreed {
	return func(total int64) error {
		c.matched = total
		f := c.cfg.looking.filter
		if total == 0 || c.harmless && (!show.IsTerminal(c.process.stdin) || len(f.IDs)+len(f.MessageIDs) > 0) {
			return nil
		}
		c.refused = c.process.confirmed(ctx, c.cfg, c.process.stderr, c.question(total), c.notDone)
		return c.refused
	}
}

// confirmed returns nil with --yes. Else it asks on w and reads the answer from the standard input. No answer, or a signal, means no. notDone is the
// text of the error then.
func (p *process) confirmed(ctx context.Context, cfg *config, w io.Writer, question, notDone string) error {
	if cfg.yes {
		return nil
	}
	fmt.Fprintf(w, "%s [y/N] ", question)
	answer, err := p.answer(ctx)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil {
		fmt.Fprintln(w)
	}
	return failure.WithHint(errors.New("not confirmed: "+notDone), "# answer y, or give --yes")
}

// answer reads a line until ctx is done. The reading goroutine may outlive the call; the process exits soon after.
func (p *process) answer(ctx context.Context) (string, error) {
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(p.stdin).ReadString('\n')
		read <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case answer := <-read:
		return answer.text, answer.err
	}
}
