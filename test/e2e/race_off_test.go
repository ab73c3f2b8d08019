//go:build !race

package e2e

// raceDetector: neither the tests nor the relay have it.
const raceDetector = false
