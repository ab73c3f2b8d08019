package show

import (
	"slices"
	"time"
)

// Level is how bad the state of an outbox is. The alerts in deploy/prometheus/rules.yaml have the same levels.
type Level string

// The levels, from best to worst.
const (
	Healthy  Level = "ok"
	Warning  Level = "warning"  // somebody should look, and messages may wait
	Critical Level = "critical" // messages do not arrive, or arrive late
)

func (l Level) rank() int { return slices.Index([]Level{Healthy, Warning, Critical}, l) }

func (l Level) words() string {
	if l == Critical {
		return "Critical: "
	}
	return "Needs attention: "
}

// Condition is one thing that can be wrong.
type Condition int

// The conditions that the verdict knows.
const (
	Late Condition = iota
	NoRelay
	RelayGone
	NotPublishing
	DatabaseFails
	Stopped
	NoAnswers
	NotStreaming
	SetAside
	BlockedKey
	DeadLetters
	Rejections
	NewerVersion
	Depth
	WAL
	SlotLost
	// Differ has no alert: only the table of relays has their settings.
	Differ
)

// Conditions returns the level of each condition, the alert that fires for it, and the chapter of the runbook. The
// verdict leaves out growth and latency: only a time series shows them, such as the console's charts.
func Conditions() map[Condition]struct {
	Level          Level
	Alert, Chapter string
} {
	return map[Condition]struct {
		Level          Level
		Alert, Chapter string
	}{
		Late:          {Critical, "CdcRelayMessagesLate", "the-queue-grows"},
		NoRelay:       {Critical, "CdcRelayAbsent", "no-relay-runs"},
		RelayGone:     {Warning, "CdcRelayGone", "one-relay-is-gone"},
		NotPublishing: {Critical, "CdcRelayBrokerNotReady", "not-ready"},
		DatabaseFails: {Critical, "CdcRelayDatabaseNotReady", "not-ready"},
		Stopped:       {Critical, "CdcRelayPublishingStopped", "rows-cannot-be-deleted"},
		NoAnswers:     {Warning, "CdcRelayNoAnswers", "ready-and-nothing-leaves"},
		NotStreaming:  {Warning, "CdcRelayNobodyStreams", "not-ready"},
		SetAside:      {Warning, "CdcRelayRowsSetAside", "rows-cannot-be-deleted"},
		BlockedKey:    {Warning, "CdcRelayRejections", "keys-are-blocked"},
		DeadLetters:   {Warning, "CdcRelayDeadLetters", "dead-letters"},
		Rejections:    {Warning, "CdcRelayRejections", "rejections"},
		NewerVersion:  {Warning, "CdcRelayNewerVersion", "a-newer-version"},
		Depth:         {Warning, "CdcRelayQueueGrows", "the-queue-grows"},
		WAL:           {Warning, "CdcRelayWalGrows", "wal-grows"},
		SlotLost:      {Warning, "CdcRelaySlotLost", "the-slot-was-lost"},
		Differ:        {Warning, "", ""},
	}
}

func (c Condition) level() Level { return Conditions()[c].Level }

// The thresholds of the alerts.
const (
	LateAfter = 60 * time.Second // CdcRelayMessagesLate
	MostDepth = 10_000           // CdcRelayQueueGrows, if the number grows
	SlowAfter = time.Second      // CdcRelayLatency
	mostWAL   = 5 << 30          // CdcRelayWalGrows, in bytes
)
