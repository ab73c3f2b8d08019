//go:build race

package fault

// raceDetector: the relay is built with it if the tests are. A race it finds ends the relay, which is a violation.
const raceDetector = true
