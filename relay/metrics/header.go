package metrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/celery"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// header is a label with the values of one header.
type header struct {
	name string
	// quoted is the name of the header as in JSON.
	quoted []byte
	values *values
}

func newHeader(name string) (*header, error) {
	label, err := labelOf(name)
	if err != nil {
		return nil, fmt.Errorf("MetricsHeader %q: %w", outbox.Shortened(name), err)
	}
	return &header{name: label, quoted: []byte(`"` + name + `"`), values: newValues("")}, nil
}

// labelOf returns the label for a header: its name, with _ for each character that a label cannot have. Prometheus
// keeps names that begin with two underscores for itself.
func labelOf(name string) (string, error) {
	label := regexp.MustCompile(`[^a-zA-Z0-9_]`).ReplaceAllString(name, "_")
	if strings.HasPrefix(label, "__") || strings.IndexAny(label, "0123456789") == 0 {
		label = "_" + strings.TrimLeft(label, "_")
	}
	// The labels of the counters, those that Prometheus adds to each target, and those of histograms and summaries.
	taken := []string{"reason", "routing_key", "job", "instance", "le", "quantile"}
	switch {
	case len(name) > outbox.LongestName:
		return "", fmt.Errorf("want at most %d bytes", outbox.LongestName)
	case strings.ContainsAny(name, `"\=,`) || strings.Map(printable, name) != name:
		return "", errors.New(`want printable characters, without " \ = and commas`)
	case strings.Trim(label, "_") == "":
		return "", errors.New("want a letter or a digit, for the name of the label")
	case slices.Contains(taken, label):
		return "", fmt.Errorf("the label %s has another meaning", label)
	case name == outbox.PossibleDuplicateHeader:
		return "", errors.New("messages_possible_duplicates_total counts these messages")
	case celery.RepeatsBody(name):
		return "", errors.New("this header repeats the body, which metrics must not show")
	}
	return label, nil
}

func (h *header) label() string { return h.name }

func (h *header) valueOf(m *outbox.Message) string {
	return shownAs(h.values, headerValue(m.Headers, h.quoted), func(string) bool { return true })
}

// headerValue returns the value of a header as text: of a string, a number or a boolean, else nil. It reads the JSON of
// Postgres only up to the header, because it runs for every message. The name is in quotes.
func headerValue(headers, name []byte) []byte {
	for at, depth := 0, 0; at < len(headers); at++ {
		switch headers[at] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			end := endOfString(headers, at)
			rest, isName := bytes.CutPrefix(headers[end:], []byte(":"))
			if depth == 1 && isName && bytes.Equal(headers[at:end], name) {
				return scalar(bytes.TrimLeft(rest, " "))
			}
			at = end - 1
		}
	}
	return nil
}

// endOfString returns the position after the string that begins here.
func endOfString(text []byte, at int) int {
	for at++; at < len(text); at++ {
		switch text[at] {
		case '\\':
			at++
		case '"':
			return at + 1
		}
	}
	return len(text)
}

// scalar returns the JSON value at the start of a text as text: nil for null, an object or an array.
func scalar(text []byte) []byte {
	switch {
	case len(text) == 0 || text[0] == '{' || text[0] == '[' || text[0] == 'n':
		return nil
	case text[0] != '"':
		end := max(bytes.IndexAny(text, ",} "), 0)
		return text[:end]
	}
	text = text[:endOfString(text, 0)]
	if !bytes.ContainsRune(text, '\\') {
		return bytes.Trim(text, `"`)
	}
	var decoded string
	if json.Unmarshal(text, &decoded) != nil {
		return nil
	}
	return []byte(decoded)
}
