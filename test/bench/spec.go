package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"
)

// Spec defines the messages of a run. Message n, counted from 0, is the same in every run.
type Spec struct {
	// Bytes is the size of a body; at least minBytes.
	Bytes int
	// Keys is how many ordering keys there are; 0: none.
	Keys int
	// HotEvery gives every HotEvery-th message the hot key; 0: no message.
	HotEvery int
	// Queues receive the messages in turn: they are routing keys of the default exchange.
	Queues []string
	// QueueType is the type of the queues, such as "quorum"; "": the server's default. They are durable.
	QueueType string
}

const (
	digits = 10
	head   = `{"n":"`
	middle = `","filler":"`
	tail   = `"}`
	// minBytes is the size of a body without filler.
	minBytes = len(head) + digits + len(middle) + len(tail)
)

// hotKey is the ordering key of Spec.HotEvery.
const hotKey = "hot"

// Body returns the body of message n in a new slice.
func (s Spec) Body(n int, filler string) []byte {
	body := make([]byte, 0, minBytes+len(filler))
	body = append(body, head...)
	body = appendNumber(body, n)
	body = append(body, middle...)
	body = append(body, filler...)
	return append(body, tail...)
}

// Filler pads a body to its size. It compresses as badly as bodies of applications do.
func (s Spec) Filler() string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	random := rand.New(rand.NewPCG(1, 2))
	filler := make([]byte, max(s.Bytes-minBytes, 0))
	for i := range filler {
		filler[i] = letters[random.IntN(len(letters))]
	}
	return string(filler)
}

// Queue returns the queue of message n.
func (s Spec) Queue(n int) string { return s.Queues[n%len(s.Queues)] }

// Key returns the ordering key of message n; "": none.
func (s Spec) Key(n int) string {
	switch {
	case s.HotEvery > 0 && n%s.HotEvery == 0:
		return hotKey
	case s.Keys > 0:
		return "key-" + strconv.Itoa(n%s.Keys)
	}
	return ""
}

func appendNumber(to []byte, n int) []byte {
	var text [digits]byte
	for i := digits - 1; i >= 0; i-- {
		text[i] = byte('0' + n%10)
		n /= 10
	}
	return append(to, text[:]...)
}

// number reads the number of the message from its body.
func number(body []byte) (int, error) {
	if len(body) < minBytes || string(body[:len(head)]) != head {
		return 0, fmt.Errorf("not a message of the benchmark: %.40q", body)
	}
	n := 0
	for _, c := range body[len(head) : len(head)+digits] {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("not a message of the benchmark: %.40q", body)
		}
		n = n*10 + int(c-'0')
	}
	return n, nil
}
