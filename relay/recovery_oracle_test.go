package relay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// tableState is what a crash, a restore, an operator or an old version may leave in the table, and the settings of the
// relay that finds it.
type tableState struct {
	Mode       string     `json:"mode"` // auto, poll or drain
	MaxRetries int        `json:"max_retries"`
	Block      bool       `json:"block,omitempty"`
	Drop       bool       `json:"drop,omitempty"`
	BatchSize  int        `json:"batch_size"`
	InFlight   int        `json:"in_flight"`
	Types      string     `json:"types,omitempty"` // further columns types: of ALTER TABLE
	Rows       []stateRow `json:"rows"`
}

// stateRow is a row. Times are those of Postgres, or distances from now with a sign.
type stateRow struct {
	ID          int64  `json:"id"`
	Message     int    `json:"message"` // two rows may have the same
	Attempts    int    `json:"attempts,omitempty"`
	Created     string `json:"created,omitempty"`
	Available   string `json:"available,omitempty"`
	Expires     string `json:"expires,omitempty"`
	MaxAttempts *int   `json:"max_attempts,omitempty"`
	Version     int    `json:"version"`
	Possible    *bool  `json:"possible,omitempty"`
	Key         string `json:"key,omitempty"`
	Coalesce    string `json:"coalesce,omitempty"`
	Fault       string `json:"fault,omitempty"` // why the message cannot be published
	Trace       string `json:"trace,omitempty"` // of a session that has locked it; held: it still does
	Dead        string `json:"dead,omitempty"`  // a dead letter with the same id, message_id or both
	Later       bool   `json:"later,omitempty"` // inserted while the relay runs
}

// reasons are those of each fault, in the order in which they are noticed.
var reasons = map[string]string{
	"no payload": "invalid_row", "two payloads": "invalid_row", "long": "invalid_routing", "headers": "invalid_headers",
	"properties": "invalid_properties", "priority": "invalid_properties",
}

// alone says what becomes of a row that no other row concerns.
func (s *tableState) alone(r stateRow, held bool) string {
	dead := func(reason string, attempts int) string {
		if r.Dead == "both" {
			return "gone" // the older dead letter stays
		}
		return fmt.Sprintf("dead: %s, %d attempts", reason, attempts)
	}
	future := r.Available == "infinity" || strings.HasPrefix(r.Available, "+") && !r.hastened()
	expired := r.Expires != "" && r.Expires != "infinity" && !strings.HasPrefix(r.Expires, "+")
	switch {
	case r.Version > 1, future, held && r.Trace == "held":
		return "waits"
	case r.Version < 1, r.Attempts < 0, r.MaxAttempts != nil && *r.MaxAttempts < 0:
		return dead("invalid_row", r.Attempts)
	case reasons[r.Fault] != "" && !(expired && r.Fault == "priority"):
		return dead(reasons[r.Fault], r.Attempts)
	case expired && s.Drop:
		return "gone"
	case expired:
		return dead("expired", r.Attempts)
	case r.Fault == "":
		return "published"
	}
	most := s.MaxRetries + 1 // no queue, or no exchange
	if r.MaxAttempts != nil {
		most = *r.MaxAttempts
	}
	if last := max(most, r.Attempts+1); most > 0 && (last < 100 || last == r.Attempts+1) {
		return dead("retries_exhausted", min(last, greatestAttempts))
	}
	return "retries"
}

const greatestAttempts = 2147483647

// hastened: a leader makes retries due that are later than any retry may be.
func (r stateRow) hastened() bool {
	return r.Attempts > 0 && r.Available == "+2000h"
}

// ends predicts what may become of each row, by id. Held: other sessions still hold their locks.
func (s *tableState) ends(held bool) map[int64][]string {
	rows, blocked, ends := slices.Clone(s.Rows), make(map[string]bool), make(map[int64][]string)
	slices.SortFunc(rows, func(a, b stateRow) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range rows {
		blocked[r.Key] = blocked[r.Key] || s.Block && r.Dead != ""
	}
	for i, r := range rows {
		end := s.alone(r, held)
		newer := slices.DeleteFunc(slices.Clone(rows[i+1:]), func(n stateRow) bool {
			return r.Coalesce == "" || n.Coalesce != r.Coalesce || n.Key != r.Key || n.place() != r.place()
		})
		stays := func(n stateRow) bool { end := s.alone(n, held); return end == "waits" || end == "retries" }
		switch {
		case r.Key != "" && blocked[r.Key]:
			end = "waits"
		case end == "waits", len(newer) == 0:
		case r.Key != "", slices.ContainsFunc(newer, stays) && !r.Later:
			end = "gone"
		default: // without a key, the newer one may leave first, and the stream does not wait for one
			ends[r.ID] = append(ends[r.ID], "gone")
		}
		ends[r.ID] = append(ends[r.ID], end)
		blocked[r.Key] = blocked[r.Key] || end == "waits" || end == "retries" || s.Block && strings.HasPrefix(end, "dead")
	}
	return ends
}

// place is where the message goes: its fault decides.
func (r stateRow) place() string {
	if r.Fault == "long" || r.Fault == "unroutable" || r.Fault == "exchange" {
		return r.Fault
	}
	return ""
}

// marked says if the message must have the mark. Certain is false if it may have it.
func (s *tableState) marked(r stateRow) (marked, certain bool) {
	switch {
	case r.Possible != nil && *r.Possible, r.Available == "" && !r.Later, r.hastened():
		return true, true
	case r.Available != "" && r.Available != "infinity" && !strings.HasPrefix(r.Available, "+"): // it was due before the term, or may have been
		return true, !r.Later
	case r.Later: // another relay may have published rows up to the last id at the start
		return false, !slices.ContainsFunc(s.Rows, func(o stateRow) bool { return !o.Later && o.ID >= r.ID }) && r.ID > 0
	}
	return false, true
}
