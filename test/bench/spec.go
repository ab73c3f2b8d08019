package bench

import (
	"math/rand/v2"
	"strconv"
)

// Spec defines the messages of a run. Message n, counted from 0, is the same in every run.
type Spec struct {
	// Bytes is the size of a body; at least minBytes.
	Bytes int
	// Keys is how many ordering keys there are; 0: none.
	Keys int
	// Queue receives the messages through the default exchange.
	Queue string
	// QueueType is the type of the queue, such as "quorum"; "": the server's default. It is durable.
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

// Body returns the body of message n in a new slice.
func (s Spec) Body(n int, filler string) []byte {
	body := append(make([]byte, 0, minBytes+len(filler)), head...)
	body = body[:len(head)+digits]
	for i := len(body) - 1; i >= len(head); i-- {
		body[i] = byte('0' + n%10)
		n /= 10
	}
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

// number reads the number of the message from its body; -1: it is no message of the benchmark.
func number(body []byte) int {
	if len(body) < minBytes {
		return -1
	}
	n, err := strconv.Atoi(string(body[len(head) : len(head)+digits]))
	if err != nil {
		return -1
	}
	return n
}
