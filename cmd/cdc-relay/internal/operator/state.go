package operator

import (
	"fmt"
	"slices"
	"strings"
)

// State is the state of a message.
type State string

// The states. docs/commands.md explains them.
const (
	AtOnce       State = "waiting"
	Due          State = "due"
	Retrying     State = "retrying"
	Scheduled    State = "scheduled"
	Blocked      State = "blocked"
	Expired      State = "expired"
	Locked       State = "locked"
	NewerVersion State = "newer_version"
	NotDeleted   State = "not_deleted"
	Dead         State = "dead"
	Published    State = "published"
)

// stateInfo is what is known of a state.
type stateInfo struct {
	State
	// means says in words what its rows are; "": the name does.
	means string
	// when is the SQL condition of a row r of the outbox.
	when string
	// list is in which order its rows are listed.
	list span
	// rare: nobody asks for it unless it has rows.
	rare bool
}

// states are those of the outbox, from the usual ones to the rare, and then those of the other tables. A row of the
// outbox has the last state whose condition holds.
func states() []stateInfo {
	return []stateInfo{
		{State: AtOnce, when: `true`, list: byID()},
		{State: Due, when: `r.available_at IS NOT NULL`, means: "their time has come", list: byTime(``, timeHasCome)},
		{State: Retrying, when: `r.available_at > statement_timestamp()`, list: byTime(timeIsToCome, ``)},
		{
			State: Scheduled, when: `r.available_at > statement_timestamp() AND r.attempts <= 0`,
			list: byTime(timeIsToCome, ``),
		},
		{
			State: Blocked, when: `coalesce(r.available_at <= statement_timestamp(), true) AND ({behind})`,
			means: "behind another message of their ordering key", list: byKey(`r.ordering_key IS NOT NULL`, ``),
		},
		{
			State: Expired, when: `r.expires_at <= statement_timestamp()`, means: "not published any more", rare: true,
			list: byID(),
		},
		{State: Locked, when: `{locked_by} <> 0`, means: "by other sessions", rare: true, list: byID()},
		{
			State: NewerVersion, when: `r.schema_version > {version}`, means: "for a newer relay", rare: true,
			list: byID(),
		},
		{
			State: NotDeleted, when: `r.id = ANY({not_deleted})`, means: "published, and the rows cannot be deleted",
			rare: true, list: byID(),
		},
		{State: Dead, list: byDeath()},
		{State: Published, list: byPublication()},
	}
}

// States returns all states, those of the outbox first.
func States() (all []State) {
	for _, s := range states() {
		all = append(all, s.State)
	}
	return all
}

func (s State) info() stateInfo {
	all := states()
	return all[max(0, slices.IndexFunc(all, func(i stateInfo) bool { return i.State == s }))]
}

// Means says in words what rows in the state are; "": its name does.
func (s State) Means() string { return s.info().means }

// Rare reports whether nobody asks for the state unless it has rows.
func (s State) Rare() bool { return s.info().rare }

// Waits reports whether it is a state of a row of the outbox.
func (s State) Waits() bool { return s != Dead && s != Published }

// Known decides the state of a row, besides the tables.
type Known struct {
	// Block: a dead letter blocks its ordering key.
	Block bool
	// NotDeleted are the ids of published rows that the database does not let a relay delete.
	NotDeleted []int64
}

// followsSQL is the condition for a row r with an older row of its key, behindDeadSQL for one with a dead letter of it.
const (
	followsSQL = `r.ordering_key IS NOT NULL AND EXISTS (
             SELECT 1 FROM {outbox} e
             WHERE e.ordering_key BETWEEN r.ordering_key AND r.ordering_key AND e.id < r.id OFFSET 0)`
	behindDeadSQL = `r.ordering_key IS NOT NULL AND EXISTS (
             SELECT 1 FROM {dead} d WHERE d.ordering_key = r.ordering_key OFFSET 0)`
)

// stateSQL is the state of a row r of the outbox, with an expression for the session that has locked it. If only one
// state matters, most others are empty, which saves looking at other rows of the key.
func (k Known) stateSQL(lockedBy string, only State) string {
	sql, behind := "CASE", followsSQL
	for _, s := range slices.Backward(states()) {
		if s.when != "" {
			sql += "\n       WHEN " + s.when + " THEN '" + string(s.State) + "'"
		}
		if s.State == only {
			break
		}
	}
	if k.Block {
		behind += " OR " + behindDeadSQL
	}
	ids := strings.Trim(strings.ReplaceAll(fmt.Sprint(k.NotDeleted), " ", ","), "[]")
	return strings.NewReplacer("{behind}", behind, "{locked_by}", lockedBy,
		"{not_deleted}", "'{"+ids+"}'::bigint[]").Replace(sql + " ELSE '' END")
}
