//go:build race

package fault

// raceDetector: the relay is built with it where the tests are. What it finds makes the relay's end a violation.
const raceDetector = true
