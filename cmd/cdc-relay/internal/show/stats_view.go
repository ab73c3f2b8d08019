package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Stats is the JSON output of stats. docs/commands.md documents its keys. Unknown values are null.
type Stats struct {
	At    time.Time `json:"at"`
	Table string    `json:"table"`

	Verdict Verdict `json:"verdict"`

	QueueDepth           *int64     `json:"queue_depth"`
	OldestPendingSeconds *float64   `json:"oldest_pending_seconds"`
	Waiting              *int64     `json:"waiting"`
	Blocked              *int64     `json:"blocked"`
	Due                  *int64     `json:"due"`
	Retrying             *int64     `json:"retrying"`
	NextRetryAt          *time.Time `json:"next_retry_at"`
	Scheduled            *int64     `json:"scheduled"`
	NextScheduledAt      *time.Time `json:"next_scheduled_at"`
	Locked               *int64     `json:"locked"`
	NewerVersion         *int64     `json:"newer_version"`
	Expired              *int64     `json:"expired"`
	NotDeleted           *int64     `json:"not_deleted"`
	BlockedKeys          *int64     `json:"blocked_keys"`
	DeadLetters          *int64     `json:"dead_letters"`
	OldestDeadLetterAt   *time.Time `json:"oldest_dead_letter_at"`
	NewestDeadLetterAt   *time.Time `json:"newest_dead_letter_at"`
	KeysBehindDeadLetter *int64     `json:"keys_behind_dead_letter"`
	// Precision is exact, at_least, estimate or unknown, for each count.
	Precision map[string]operator.Precision `json:"precision"`

	SlotLagBytes   *int64   `json:"slot_lag_bytes"`
	SlotLagSeconds *float64 `json:"slot_lag_seconds"`
	Slot           slotView `json:"slot"`

	// IdleSlots are the slots of others that nobody uses and that retain much WAL.
	IdleSlots []idleSlot `json:"idle_slots"`

	Relays Relays `json:"relays"`

	TopFailing []Failing `json:"top_failing"`

	// Settings are those of the relays.
	Settings Settings `json:"-"`

	counts map[string]operator.Count
	oldest time.Duration
	// oldestAtOnce is as in operator.QueueStats.
	oldestAtOnce *time.Time
	// dead and retries are the failures by cause, the largest first.
	dead, retries operator.Groups
	// falls says how fast the number of messages falls, and when none is left; "": it does not, or is small.
	falls string
	// differences are those of Relays.
	differences []string
}

type slotView struct {
	Name          string            `json:"name"`
	Exists        bool              `json:"exists"`
	Owned         bool              `json:"owned"`
	Owner         *operator.Session `json:"owner"`
	RetainedBytes *int64            `json:"retained_bytes"`
	WALStatus     *string           `json:"wal_status"`
	SafeBytes     *int64            `json:"safe_bytes"`
}

type idleSlot struct {
	Name string `json:"name"`
	// Type is logical or physical. Database is "" for a physical one.
	Type          string `json:"type"`
	Database      string `json:"database"`
	RetainedBytes int64  `json:"retained_bytes"`
}

// Failing is why several messages failed.
type Failing struct {
	Reason string `json:"reason"`
	// Meaning says what the reason means, and Fix what to do about it; "": unknown.
	Meaning string `json:"meaning"`
	Fix     string `json:"fix"`
	// Exchange is "(default)" for the default exchange, and "" for messages that leave it to the relay.
	Exchange string `json:"exchange"`
	// RoutingKey is null for messages with several; RoutingKeys counts them.
	RoutingKey  *string `json:"routing_key"`
	RoutingKeys int64   `json:"routing_keys"`
	// Header is the value of the header to group by; null: not grouped.
	Header  *string `json:"header"`
	Example string  `json:"example"`
	// Retrying counts rejected rows, Dead dead letters.
	Retrying int64 `json:"retrying"`
	Dead     int64 `json:"dead"`
}

// failingOf joins the causes of dead letters and retries, those with most messages first.
func failingOf(dead, retries operator.Groups, top int) []Failing {
	all := []Failing{}
	count := func(groups operator.Groups, of func(f *Failing) *int64) {
		for _, g := range groups.All {
			same := func(f Failing) bool {
				return f.Reason == g.Reason && f.Exchange == g.Exchange &&
					ValueOr(f.Header, "") == ValueOr(g.Header, "")
			}
			n := slices.IndexFunc(all, same)
			if n < 0 {
				n = len(all)
				all = append(all, Failing{
					Reason: g.Reason, Exchange: g.Exchange, RoutingKey: g.OneKey, RoutingKeys: g.Keys, Header: g.Header,
					Example: g.Example,
				})
				all[n].Meaning, all[n].Fix = explainGroup(g)
			} else if ValueOr(all[n].RoutingKey, "") != ValueOr(g.OneKey, "") {
				all[n].RoutingKey, all[n].RoutingKeys = nil, max(all[n].RoutingKeys, g.Keys, 2)
			}
			*of(&all[n]) += g.N
		}
	}
	count(dead, func(f *Failing) *int64 { return &f.Dead })
	count(retries, func(f *Failing) *int64 { return &f.Retrying })
	slices.SortStableFunc(all, func(a, b Failing) int { return cmp.Compare(b.Dead+b.Retrying, a.Dead+a.Retrying) })
	return all[:min(top, len(all))]
}

// topPrecision is Exact if all dead letters and retries were read.
func topPrecision(s operator.QueueStats) operator.Precision {
	if s.FailedDead.N.Precision != operator.Exact {
		return s.FailedDead.N.Precision
	}
	return s.FailedRetries.N.Precision
}

// explainGroup says why the messages of a group failed, and what to do first; fix is "" if nothing is known.
func explainGroup(g operator.Group) (meaning, fix string) {
	meaning, fix = GroupFailure(g)
	return cmp.Or(meaning, "of "+OrElse(Printable(g.Reason), "a failure without a reason")), fix
}

// whereOf names the exchange and the routing keys of a group.
func whereOf(g operator.Group) string {
	var parts []string
	if g.Exchange != "" {
		parts = append(parts, "exchange "+Shortened(g.Exchange, 40))
	}
	if g.OneKey != nil {
		parts = append(parts, "routing key "+OrElse(Shortened(*g.OneKey, 40), "''"))
	} else {
		parts = append(parts, Plural(g.Keys, "routing key"))
	}
	if header := ValueOr(g.Header, ""); header != "" {
		parts = append(parts, Shortened(header, 40))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func newStats(cfg *relay.Config, s operator.QueueStats, slot slot.Slot, top int) Stats {
	v := Stats{
		At: s.At.UTC(), Table: cfg.Table.String(),
		NextRetryAt: timeOrNull(s.NextRetry), NextScheduledAt: timeOrNull(s.NextScheduled),
		OldestDeadLetterAt: timeOrNull(s.OldestDead), NewestDeadLetterAt: timeOrNull(s.NewestDead),
		Slot:       slotView{Name: cfg.Names().Slot},
		TopFailing: failingOf(s.FailedDead, s.FailedRetries, top),
		dead:       s.FailedDead, retries: s.FailedRetries, oldestAtOnce: s.OldestAtOnce,
		counts: map[string]operator.Count{
			"queue_depth": s.Depth, "blocked_keys": blockedKeys(cfg, s), "dead_letters": s.DeadLetters,
			"keys_behind_dead_letter": s.KeysBehindDead,
		},
		Precision: map[string]operator.Precision{"top_failing": topPrecision(s)},
	}
	for state, count := range s.States {
		v.counts[string(state)] = count
	}
	for name, into := range map[string]**int64{
		"queue_depth":             &v.QueueDepth,
		"waiting":                 &v.Waiting,
		"blocked":                 &v.Blocked,
		"not_deleted":             &v.NotDeleted,
		"locked":                  &v.Locked,
		"due":                     &v.Due,
		"retrying":                &v.Retrying,
		"scheduled":               &v.Scheduled,
		"newer_version":           &v.NewerVersion,
		"expired":                 &v.Expired,
		"blocked_keys":            &v.BlockedKeys,
		"dead_letters":            &v.DeadLetters,
		"keys_behind_dead_letter": &v.KeysBehindDeadLetter,
	} {
		count := v.counts[name]
		v.Precision[name] = count.Precision
		if count.Precision != operator.Unknown {
			*into = &count.N
		}
	}
	if !s.OldestUnknown {
		if s.OldestPending != nil {
			v.oldest = max(s.At.Sub(*s.OldestPending), 0)
		}
		age := seconds(v.oldest)
		v.OldestPendingSeconds = &age
	}
	v.showSlot(slot)
	return v
}

// Count returns one of the counts by its name in JSON, such as queue_depth.
func (v Stats) Count(name string) operator.Count { return v.counts[name] }

// Differences says in which version and settings the relays that work differ.
func (v Stats) Differences() []string { return v.differences }

// showSlot copies the state of the slot, if this database has it.
func (v *Stats) showSlot(slot slot.Slot) {
	if !slot.Here {
		return
	}
	v.Slot.Exists, v.Slot.RetainedBytes, v.Slot.SafeBytes = true, &slot.RetainedBytes, slot.SafeBytes
	if slot.WALStatus != "" {
		v.Slot.WALStatus = &slot.WALStatus
	}
	if slot.Confirmed != 0 {
		lag := max(slot.LagBytes, 0)
		v.SlotLagBytes = &lag
	}
	v.Slot.Owner = viewOfOwner(slot)
	if v.Slot.Owned = v.Slot.Owner != nil; v.Slot.Owned {
		v.SlotLagSeconds = slot.LagSeconds
	} else {
		v.SlotLagSeconds = slot.InactiveSeconds
	}
}

func (v *Stats) showIdle(idle []slot.Slot) {
	v.IdleSlots = []idleSlot{}
	for _, s := range idle {
		v.IdleSlots = append(v.IdleSlots, idleSlot{s.Name, s.Type, s.Database, s.RetainedBytes})
	}
}

// viewOfOwner returns nil if nobody owns the slot.
func viewOfOwner(slot slot.Slot) *operator.Session {
	p := slot.Owner()
	if p.PID == 0 {
		return nil
	}
	view := &operator.Session{PID: int32(p.PID), Application: p.Application, Client: p.Client}
	if !p.Since.IsZero() { // the role may see it
		view.Since = &p.Since
	}
	return view
}

// blockedKeys counts the keys that wait for their oldest row, and the keys that a dead letter blocks.
func blockedKeys(cfg *relay.Config, s operator.QueueStats) operator.Count {
	count := s.TimedKeys
	if !DeadLettersBlock(cfg) || count.Precision == operator.Unknown ||
		s.KeysBehindDead.Precision == operator.Unknown {
		return count
	}
	count.N += s.KeysBehindDead.N
	if s.KeysBehindDead.Precision == operator.AtLeast {
		count.Precision = operator.AtLeast
	}
	return count
}

// PerSecond is how many messages all relays publish.
func (v *Stats) PerSecond() (sum float64) {
	for _, r := range v.Relays.Working() {
		sum += r.PublishedPerSecond
	}
	return sum
}

// fall notes how fast the number of messages falls: by what the relays published in the last minute, and the rows that
// were new meanwhile. A small difference of two large rates is noise, and only rows that can leave are gone then.
func (v *Stats) fall() {
	rate, added := v.PerSecond(), 0.0
	for _, r := range v.Relays.Leading() {
		if added = max(added, r.NewRowsPerSecond); r.Seconds < fallsOver {
			return
		}
	}
	n, falls := v.counts["waiting"].N+v.counts["due"].N, rate-added
	if n < 1000 || falls < max(1, rate/10) {
		return
	}
	left := time.Duration(float64(n) / falls * float64(time.Second))
	v.falls = fmt.Sprintf(": falling, %s/s, empty in about %s", Number(int64(falls)), Duration(max(left, time.Second)))
}

// fallsOver is for at least how many seconds a relay has measured its rates.
const fallsOver = 60
