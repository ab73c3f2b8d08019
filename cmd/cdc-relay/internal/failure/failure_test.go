package failure_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

func TestEachMistakeOfTheUserHasALine(t *testing.T) {
	withPassword := fmt.Errorf("b: %w", failure.Usagef("amqp://u:s3cr3t@h"))
	bothWrong := errors.Join(failure.Usagef("--a: %q", "\x1b"), withPassword)
	for _, test := range []struct {
		err  error
		want []string
	}{
		{nil, nil},
		{bothWrong, []string{`--a: "\x1b"`, "b: amqp://u:***@h"}},
		{errors.Join(errors.New("one"), errors.New("two")), []string{"one; two"}},
	} {
		if got := failure.Lines(test.err); !slices.Equal(got, test.want) {
			t.Errorf("%v: got %q", test.err, got)
		}
	}
}

func TestKindsOfErrorsAreFoundBelowAHint(t *testing.T) {
	cause := errors.New("cause")
	for name, test := range map[string]struct {
		err error
		is  func(error) bool
	}{
		"a mistake":       {failure.Usagef("cause"), failure.IsUsage},
		"nothing found":   {failure.NotFound(cause), failure.IsNotFound},
		"a logged error":  {failure.Logged(cause), failure.IsLogged},
		"the cause alone": {cause, func(err error) bool { return errors.Is(err, cause) }},
	} {
		err := fmt.Errorf("command: %w", failure.WithHint(test.err, "# do this"))
		if !test.is(err) || problem.Hint(err) != "# do this" || err.Error() != "command: cause" {
			t.Errorf("%s: %v, hint %q", name, err, problem.Hint(err))
		}
		if test.is(errors.New("cause")) {
			t.Errorf("%s: any error is one", name)
		}
	}
}
