//go:build !race

package e2e

// raceDetector: the tests run without it, and so does the relay.
const raceDetector = false
