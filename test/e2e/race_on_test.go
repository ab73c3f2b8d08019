//go:build race

package e2e

// raceDetector: the tests and the relay have it.
const raceDetector = true
