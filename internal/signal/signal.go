// Package signal wakes a goroutine that waits.
package signal

// Signal is received once for all sends since it was received last.
type Signal chan struct{}

// New returns a signal that was not sent.
func New() Signal { return make(Signal, 1) }

// Send does not wait for the receiver.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}
