//go:build race

package e2e

// raceDetector: the tests run with it, and so does the relay.
const raceDetector = true
