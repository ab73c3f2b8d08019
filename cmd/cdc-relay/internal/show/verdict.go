package show

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Level is how bad the state of an outbox is.
type Level string

// The levels, from best to worst.
const (
	Healthy   Level = "healthy"
	Attention Level = "attention" // somebody should look, and messages may wait
	Critical  Level = "critical"  // messages do not arrive, or arrive late
)

// Verdict answers whether all is well. stats, the console and /readyz?verbose get it from the same facts.
type Verdict struct {
	Level Level `json:"level"`
	// Text is one sentence for people.
	Text string `json:"text"`
	// Command shows more or fixes the cause; "": nothing to do.
	Command string `json:"command"`
	// Messages is how many messages are affected; null: unknown or none.
	Messages *int64 `json:"messages"`
	// Others are the sentences of the other findings, the worst first.
	Others []string `json:"others"`
	// Page is the console's page about it; "": none.
	Page string `json:"-"`
}

// The thresholds of the alerts in deploy/prometheus/rules.yaml. The verdict leaves out growth and latency: only a time
// series shows them, such as the console's charts.
const (
	LateAfter = 60 * time.Second // CdcRelayMessagesLate
	MostDepth = 10_000           // CdcRelayQueueGrows, if the number grows
	SlowAfter = time.Second      // CdcRelayLatency
	mostWAL   = 5_000_000_000    // CdcRelayWalGrows, in bytes
)

// finding is one thing that is not well.
type finding struct {
	level    Level
	text     string
	command  string
	page     string
	messages *int64
}

// Unreadable is the verdict if the tables cannot be read.
func Unreadable(table outbox.Table, err error) Verdict {
	sentence := "Critical: the outbox cannot be read: " + Shortened(string(Redact([]byte(err.Error()))), 200)
	check := problem.Command(table, "check")
	return Verdict{Level: Critical, Text: sentence, Command: check, Page: "/check", Others: []string{}}
}

// Print writes the verdict for people: the sentence, the command, and the other findings.
func (v Verdict) Print(w io.Writer, paint Paint) {
	colours := map[Level]text.Color{Healthy: text.FgGreen, Attention: text.FgYellow, Critical: text.FgRed}
	fmt.Fprintln(w, paint(colours[v.Level], v.Text))
	if v.Command != "" {
		fmt.Fprintln(w, "  "+v.Command)
	}
	for _, other := range v.Others {
		fmt.Fprintln(w, "also: "+other)
	}
	fmt.Fprintln(w)
}

// judge returns the verdict. Blocked is a key with rows that wait; nil: none.
func (v *Stats) judge(cfg *relay.Config, blocked *operator.Key) Verdict {
	found := v.relayFindings(cfg)
	late := len(found) == 0 && v.oldest > LateAfter
	found = append(found, v.messageFindings(cfg.Table, blocked)...)
	if late {
		if blocked != nil { // its messages count as late, and it says why
			found[0].level = Critical
		}
		sentence := "the oldest message has waited for " + Duration(v.oldest)
		found = append(found, finding{Critical, sentence, problem.Command(cfg.Table, "list"), "/waiting", v.unsent()})
	}
	found = append(found, v.serverFindings(cfg)...)
	if len(found) == 0 {
		return Verdict{Level: Healthy, Text: "Healthy: " + v.calm(), Others: []string{}}
	}
	slices.SortStableFunc(found, func(a, b finding) int { return cmp.Compare(b.level.rank(), a.level.rank()) })
	worst := found[0]
	verdict := Verdict{
		Level: worst.level, Text: worst.level.words() + worst.text, Command: worst.command, Page: worst.page,
		Messages: worst.messages, Others: []string{},
	}
	for _, other := range found[1:] {
		verdict.Others = append(verdict.Others, other.text)
	}
	return verdict
}

func (l Level) rank() int { return slices.Index([]Level{Healthy, Attention, Critical}, l) }

func (l Level) words() string {
	if l == Critical {
		return "Critical: "
	}
	return "Needs attention: "
}

// relayFindings are about the relays. One cause often makes several parts of a relay wait, so only the first is
// returned.
func (v *Stats) relayFindings(cfg *relay.Config) []finding {
	answers := v.Relay != nil && v.Relay.Error == nil
	command, page := problem.Command(cfg.Table, "check"), "/check"
	switch {
	case answers && !v.Relay.Ready:
		return []finding{{Critical, v.Relay.trouble() + v.andWait(), command, page, v.unsent()}}
	case !answers && !v.Slot.Owned && len(v.hosts) == 0:
		return []finding{{Critical, "no relay runs" + v.andWait(), problem.Command(cfg.Table, "run"), page, v.unsent()}}
	case cfg.Mode != relay.ModePoll && !v.Slot.Owned:
		return []finding{{
			Attention, "no relay streams: messages are published from the table, later than usual", command, page, nil,
		}}
	case answers:
		for _, line := range v.Relay.health[1:] {
			if rows, found := strings.CutPrefix(line, "settle: ready, settling; "); found {
				sentence := "rows cannot be deleted or updated: " + Shortened(rows, 160)
				return []finding{{Attention, sentence, command, page, nil}}
			}
		}
	}
	return nil
}

// trouble says what the first part that is not ready waits for.
func (v *Live) trouble() string {
	for _, line := range v.health[1:] {
		name, state, _ := strings.Cut(line, ": ")
		detail, notReady := strings.CutPrefix(state, "not ready")
		if !notReady {
			continue
		}
		detail = Shortened(strings.TrimPrefix(detail, ", "), 160)
		switch name {
		case "publisher":
			return "no message is published: " + detail
		case "settle":
			return detail
		}
		return name + ": " + detail
	}
	return "the relay is not ready"
}

// messageFindings are about messages that a relay could not publish.
func (v *Stats) messageFindings(table outbox.Table, blocked *operator.Key) (found []finding) {
	if blocked != nil {
		found = append(found, blockedFinding(table, blocked))
	}
	if n := v.counts["dead_letters"]; n.N > 0 {
		sentence := countOf(n, "dead letter") + v.kinds(func(f operator.Failing) int64 { return f.Dead })
		command := problem.Command(table, "list", "--state", "dead")
		found = append(found, finding{Attention, sentence, command, "/dead-letters", &n.N})
	}
	if n := v.counts["retrying"]; n.N > 0 && (blocked == nil || blocked.Dead != nil || n.N > 1) {
		sentence := countOf(n, "rejected message") + " will be tried again" +
			v.kinds(func(f operator.Failing) int64 { return f.Retrying })
		command := problem.Command(table, "list", "--state", "retrying")
		found = append(found, finding{Attention, sentence, command, "/waiting?state=retrying", &n.N})
	}
	if n := v.counts["newer_version"]; n.N > 0 {
		sentence := countOf(n, "message") + verbOf(n, " waits", " wait") + " for a newer relay"
		found = append(found, finding{Attention, sentence, "cdc-relay --version", "/waiting?state=newer_version", &n.N})
	}
	return found
}

func blockedFinding(table outbox.Table, k *operator.Key) finding {
	behind, id := k.Behind, k.First.ID
	head, why := fmt.Sprintf("message %d", id), ValueOr(k.First.LastError, "")
	command := problem.Command(table, "explain", fmt.Sprint(id))
	if k.Dead != nil { // its first message waits, too
		behind.N++
		id, why = *k.Dead, ""
		head = fmt.Sprintf("dead letter %d", id)
		command = problem.Command(table, "resend", "--state", "dead", fmt.Sprint(id))
	}
	sentence := fmt.Sprintf("%s of key %s %s behind %s",
		countOf(behind, "message"), Shortened(k.Key, 40), verbOf(behind, "waits", "wait"), head)
	if why != "" {
		sentence += " (" + Shortened(why, 120) + ")"
	}
	return finding{Attention, sentence, command, fmt.Sprintf("/message?id=%d", id), &behind.N}
}

// serverFindings are about what the outbox costs the server.
func (v *Stats) serverFindings(cfg *relay.Config) (found []finding) {
	if n := v.unsent(); n != nil && *n > MostDepth {
		sentence := Number(*n) + " messages wait"
		watch := problem.Command(cfg.Table, "stats", "--watch")
		found = append(found, finding{Attention, sentence, watch, "/waiting", n})
	}
	if v.Slot.WALStatus != nil && (*v.Slot.WALStatus == "unreserved" || *v.Slot.WALStatus == "lost") {
		sentence := "Postgres removes the WAL of slot " + cfg.Names().Slot + " (wal_status " + *v.Slot.WALStatus + ")"
		found = append(found, finding{Attention, sentence, problem.Command(cfg.Table, "check"), "/check", nil})
	} else if v.Slot.RetainedBytes != nil && *v.Slot.RetainedBytes > mostWAL {
		sentence := "slot " + cfg.Names().Slot + " retains " + Bytes(*v.Slot.RetainedBytes) + " of WAL"
		found = append(found, finding{Attention, sentence, problem.Command(cfg.Table, "check"), "/check", nil})
	}
	return found
}

// unsent counts the messages whose time has come or that were rejected; nil: unknown.
func (v *Stats) unsent() *int64 {
	if v.QueueDepth == nil {
		return nil
	}
	n := *v.QueueDepth - v.counts["scheduled"].N - v.counts["expired"].N
	n = max(n, 0)
	return &n
}

func (v *Stats) andWait() string {
	n := v.unsent()
	switch {
	case n == nil || *n == 0:
		return ""
	case *n == 1:
		return "; 1 message waits"
	}
	return "; " + Number(*n) + " messages wait"
}

// kinds lists the two most frequent kinds of failure.
func (v *Stats) kinds(of func(operator.Failing) int64) string {
	var texts []string
	for _, f := range v.failing {
		if n := of(f); n > 0 {
			name := Shortened(f.RoutingKey, 40)
			if header := ValueOr(f.Header, ""); header != "" {
				name += " " + Shortened(header, 40)
			}
			texts = append(texts, fmt.Sprintf("%s × %s, %s", Number(n), name, Shortened(f.Error, 30)))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts[:min(2, len(texts))], "; ") + ")"
}

// calm describes an outbox in which all is well.
func (v *Stats) calm() string {
	var parts []string
	if v.Relay != nil && v.Relay.Error == nil {
		parts = append(parts, Number(int64(v.Relay.PublishedPerSecond+0.5))+" messages/s")
		if v.Relay.Latency != nil {
			parts = append(parts, "p99 "+latencyText(v.Relay.Latency.P99Seconds))
		}
	} else if n := v.unsent(); n != nil {
		parts = append(parts, cmp.Or(strings.TrimPrefix(v.andWait(), "; "), "no message waits"))
	}
	if owner := v.Slot.Owner; owner != nil {
		leader := ValueOr(owner.Client, ValueOr(owner.Application, ""))
		if host, _, err := net.SplitHostPort(leader); err == nil {
			leader = host
		}
		parts = append(parts, "leader "+OrElse(Printable(leader), fmt.Sprintf("backend %d", owner.PID)))
	}
	return strings.Join(parts, ", ")
}
