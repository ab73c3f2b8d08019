package metrics

import (
	"strings"
	"sync"
	"unicode"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// By says by what the counters of messages count, besides their own labels. Each label has at most mostLabels values.
// The zero By adds no label, and costs nothing for a message.
type By struct {
	// RoutingKeys are patterns like those of a topic exchange. The label routing_key has the keys that match; all other
	// keys are "other". None: no label.
	RoutingKeys []string
	// Header is the name of a header in the column headers, in the same letter case. Its label has this name, with _
	// for each character that a label cannot have. The value is that of a string, a number or a boolean; "" stands for
	// messages without the header, and for null, objects and arrays. "": no label.
	Header string
}

// Check returns an error for a pattern or a header that New would reject.
func (b By) Check() error {
	_, err := b.dimensions()
	return err
}

// dimensions returns the labels, in the order of their values.
func (b By) dimensions() (all []dimension, err error) {
	if len(b.RoutingKeys) > 0 {
		keys, err := newRoutingKeys(b.RoutingKeys)
		if err != nil {
			return nil, err
		}
		all = append(all, keys)
	}
	if b.Header != "" {
		h, err := newHeader(b.Header)
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

// dimension is one label of the counters of messages. It is safe for concurrent use.
type dimension interface {
	label() string
	valueOf(m *outbox.Message) string
}

const (
	// mostLabels bounds the values of one label. All values beyond it share otherValues.
	mostLabels = 100
	// longestLabel is up to how many bytes a value has that is shown: what AMQP allows for a routing key.
	longestLabel = outbox.LongestName
	// otherValues stands for values that are not shown.
	otherValues = "other"
)

// values are the values of one label. They come from messages, so their number and size are bounded.
type values struct {
	mu struct {
		sync.Mutex
		shown map[string]string // by the value in the message
	}
}

// newValues returns values of which some are always shown.
func newValues(always ...string) *values {
	v := &values{}
	v.mu.shown = make(map[string]string)
	for _, value := range append(always, otherValues) {
		v.mu.shown[value] = value
	}
	return v
}

// shownAs returns how a label shows a value: as it is, with ? for characters that cannot be printed, if it is wanted
// and there is room, else as otherValues.
func shownAs[T string | []byte](v *values, value T, wanted func(string) bool) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if shown, known := v.mu.shown[string(value)]; known {
		return shown
	}
	if len(v.mu.shown) >= mostLabels || len(value) > longestLabel || !wanted(string(value)) {
		return otherValues
	}
	shown := strings.Map(printable, strings.ToValidUTF8(string(value), "?"))
	v.mu.shown[string(value)] = shown
	return shown
}

// printable keeps line breaks and codes for a terminal out of what people read.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}
