package terminal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
)

// Confirm asks on w, which is Out or Err, and reads the answer from In. It returns nil after a yes. No answer, or the
// end of ctx, means no. notDone is the text of the error then.
func (t Terminal) Confirm(ctx context.Context, w io.Writer, question, notDone string) error {
	fmt.Fprintf(w, "%s [y/N] ", question)
	answer, err := t.answer(ctx)
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
func (t Terminal) answer(ctx context.Context) (string, error) {
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(t.In).ReadString('\n')
		read <- line{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case answer := <-read:
		return answer.text, answer.err
	}
}
