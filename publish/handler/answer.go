package handler

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// answer is a line of the handler.
type answer struct {
	MessageID outbox.UUID `json:"message_id"`
	// Outcome is confirmed, rejected (costs one attempt, retried later), impossible (dead letter at once), unknown (may
	// have arrived: sent again, marked, without an attempt) or not_sent (nothing left the handler: the same without the
	// mark).
	Outcome string `json:"outcome"`
	// RetryIn is a duration such as 30s that replaces the relay's backoff; only with rejected.
	RetryIn string `json:"retry_in"`
	// Detail is one line for people, stored in last_error.
	Detail string `json:"detail"`

	outcome outbox.Outcome
	retryIn time.Duration
}

const anAnswer = `want a line such as {"message_id": "…", "outcome": "confirmed"}`

// parseAnswer returns the MessageID even if the rest is wrong, if it can be read. Errors quote nothing of the line but
// short words in place of an outcome or a duration, because a handler may print messages.
func parseAnswer(text []byte) (a answer, err error) {
	var mistyped *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch err := json.Unmarshal(text, &a); {
	case errors.As(err, &mistyped) && mistyped.Field != "": // the other keys were read
		return a, fmt.Errorf("%s: want a string, not a JSON %s", mistyped.Field, mistyped.Value)
	case errors.As(err, &syntax):
		return a, fmt.Errorf("%s: not JSON from byte %d on", anAnswer, syntax.Offset)
	case errors.As(err, &mistyped):
		return a, fmt.Errorf("%s: not an object", anAnswer)
	case err != nil:
		return a, fmt.Errorf("%s: %w", anAnswer, err) // of ParseUUID, which quotes nothing
	}
	if a.MessageID == (outbox.UUID{}) {
		return a, fmt.Errorf("want a message_id")
	}
	if a.RetryIn != "" {
		a.retryIn, err = time.ParseDuration(a.RetryIn)
		if err != nil || a.retryIn <= 0 || a.Outcome != "rejected" {
			return a, fmt.Errorf("retry_in %s: want a duration with its unit, such as 30s, and the outcome rejected",
				shortWord(a.RetryIn))
		}
	}
	a.outcome = map[string]outbox.Outcome{
		"confirmed": outbox.Confirmed, "rejected": outbox.Rejected, "impossible": outbox.Impossible,
		"unknown": outbox.Unknown, "not_sent": outbox.NotSent,
	}[a.Outcome]
	if a.outcome == 0 {
		err = fmt.Errorf("outcome %s: want confirmed, rejected, impossible, unknown or not_sent", shortWord(a.Outcome))
	}
	return a, err
}

// result converts the answer to a result. A wrong answer means Rejected, so that last_error shows what is wrong. The
// message may have arrived.
func (a answer) result(m *outbox.Message, wrong error) outbox.Result {
	if wrong != nil {
		return outbox.Result{
			Message: m, Outcome: outbox.Rejected, Reason: outbox.ReasonHandlerRejected, MaybeSent: true,
			Detail: "wrong answer: " + oneLine(wrong.Error()),
		}
	}
	r := outbox.Result{
		Message: m, Outcome: a.outcome, RetryIn: a.retryIn, Detail: cut(oneLine(printable(a.Detail)), 500),
	}
	switch r.Outcome {
	case outbox.Rejected:
		r.Reason = outbox.ReasonHandlerRejected
	case outbox.Impossible:
		r.Reason = outbox.ReasonHandlerImpossible
	}
	return r
}

// shortWord quotes a word that can be a mistyped one, and says only how long anything else is.
func shortWord(s string) string {
	if regexp.MustCompile(`^[-+.\w]{0,20}$`).MatchString(s) {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("of %d bytes", len(s))
}

// printable replaces characters that may control a terminal, except white space.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) {
			return r
		}
		return '?'
	}, s)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cut shortens text from outside to a number of bytes.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
