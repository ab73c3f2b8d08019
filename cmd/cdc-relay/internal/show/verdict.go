package show

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Verdict answers whether all is well. stats, the console and /readyz?verbose get it from the same facts.
type Verdict struct {
	Level Level `json:"level"`
	// Text is one sentence for people: what is wrong, and what happens meanwhile.
	Text string `json:"text"`
	// Detail is the text of the server about it, whole; "": none.
	Detail string `json:"detail"`
	// Fix says what to do about the cause, in words or SQL; "": Command shows that.
	Fix string `json:"fix"`
	// Command shows more or fixes the cause; "": nothing to do.
	Command string `json:"command"`
	// Messages is how many messages are affected; null: unknown or none.
	Messages *int64 `json:"messages"`
	// Others are the sentences of the other findings, the worst first.
	Others []string `json:"others"`
	// Page is the console's page about it; "": none.
	Page string `json:"-"`
	// Alert is the alert that fires for it, and Runbook the address of its chapter; "": none.
	Alert   string `json:"-"`
	Runbook string `json:"-"`
}

// finding is one thing that is not well.
type finding struct {
	is                               Condition
	text, detail, fix, command, page string
	messages                         *int64
	// blocks: other messages wait behind these.
	blocks bool
	// also is the text below another finding; "": that of the worst.
	also string
}

// mostAlso is the length of a line below the worst finding: with its first word, it fits into 120 columns.
const mostAlso = 113

// of says where to read about the condition.
func (v Verdict) of(is Condition) Verdict {
	about := Conditions()[is]
	if v.Alert = about.Alert; about.Chapter != "" {
		v.Runbook = "https://cdc-relay.github.io/cdc-relay/runbook#" + about.Chapter
	}
	return v
}

// Unreadable is the verdict if the tables cannot be read.
func Unreadable(table outbox.Table, err error) Verdict {
	return Verdict{
		Level: DatabaseFails.level(), Text: "Critical: the outbox cannot be read",
		Detail: OneLine(string(Redact([]byte(err.Error())))), Fix: OneLine(problem.Hint(err)),
		Command: problem.Command(table, "check"), Page: "/check", Others: []string{},
	}.of(DatabaseFails)
}

// Print writes the verdict for people: the sentence, what to do, and the other findings.
func (v Verdict) Print(w io.Writer, paint Paint) {
	colours := map[Level]text.Color{Healthy: text.FgGreen, Warning: text.FgYellow, Critical: text.FgRed}
	fmt.Fprintln(w, paint(colours[v.Level], v.Text))
	for _, line := range []string{v.Detail, v.Fix, v.Command} {
		if line != "" {
			fmt.Fprintln(w, "  "+line)
		}
	}
	for _, other := range v.Others {
		fmt.Fprintln(w, "also: "+other)
	}
	fmt.Fprintln(w)
}

// judge returns the verdict. Blocked is a key with rows that wait; nil: none.
func (v *Stats) judge(cfg *relay.Config, blocked *operator.Key) Verdict {
	found := v.relayFindings(cfg)
	relays := len(found) > 0
	found = append(found, v.messageFindings(cfg, blocked)...)
	if v.oldest > LateAfter {
		late := "the oldest message has waited for " + Duration(v.oldest) + v.falls
		cause := slices.IndexFunc(found, func(f finding) bool { return relays || f.blocks })
		if cause >= 0 { // the cause says more
			found[cause].text += "; " + late
		} else {
			late := finding{text: late, command: problem.Command(cfg.Table, "list"), page: "/waiting"}
			cause, found = 0, slices.Insert(found, 0, late)
		}
		if found[cause].is.level() != Critical {
			found[cause].is = Late
		}
		found[cause].messages = cmp.Or(found[cause].messages, v.unsent())
	}
	depthKnown := v.oldest > LateAfter && v.falls != "" ||
		slices.ContainsFunc(found, func(f finding) bool { return strings.Contains(f.text, v.andWait()) })
	found = append(found, v.serverFindings(cfg, depthKnown)...)
	if len(found) == 0 {
		return Verdict{Level: Healthy, Text: "Healthy: " + v.calm(), Others: []string{}}
	}
	slices.SortStableFunc(found, func(a, b finding) int {
		return cmp.Compare(b.is.level().rank(), a.is.level().rank())
	})
	worst := found[0]
	verdict := Verdict{
		Level: worst.is.level(), Text: worst.is.level().words() + worst.text, Detail: worst.detail, Fix: worst.fix,
		Command: worst.command, Page: worst.page, Messages: worst.messages, Others: []string{},
	}.of(worst.is)
	for _, other := range found[1:] {
		line := cmp.Or(other.also, other.text)
		if with := line + "; " + other.fix; other.fix != "" && len(with) <= mostAlso {
			line = with
		}
		verdict.Others = append(verdict.Others, Shortened(line, mostAlso))
	}
	return verdict
}

// compact returns the texts that are not empty.
func compact(texts ...string) []string {
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}

// Restart is what to do about a relay that was not seen lately.
const Restart = "see its log; if it is not seen within a minute, restart it: " +
	"it was killed, hangs, or cannot reach Postgres"

// relayFindings are about the relays. The first may explain why messages are late.
func (v *Stats) relayFindings(cfg *relay.Config) (found []finding) {
	check := finding{command: problem.Command(cfg.Table, "check"), page: "/check"}
	add := func(is Condition, text, detail, fix string) {
		one := check
		one.is, one.text, one.detail, one.fix = is, text, detail, fix
		if is == NoRelay || is == RelayGone || is == Differ {
			one.page = "/relays"
		}
		if is.level() == Critical {
			one.text, one.messages = one.text+v.andWait(), v.unsent()
		}
		// The leaders of two shards, or two parts of one, can have the same trouble.
		if !slices.ContainsFunc(found, func(f finding) bool { return f.is == is && f.text == one.text }) {
			found = append(found, one)
		}
	}
	for _, r := range v.Relays.Working() {
		r.findings(add)
	}
	unseen, missed := len(v.Relays.Working()) == 0, strings.Join(v.Relays.Missed(), "; ")
	switch {
	case unseen && missed != "" && (v.oldest > noAnswersAfter || !v.Slot.Owned):
		add(NoRelay, "no relay answers: "+missed, "", Restart)
	case unseen && len(v.Settings.Mute) > 0:
		role := v.Settings.Mute[0]
		add(Differ, fmt.Sprintf("a relay of role %q runs, and may not tell what it does", role), "",
			grants.Report(cfg.Table).To(outbox.QuoteIdentifier(role))+";")
	case unseen && !v.Slot.Owned && v.Settings.readable:
		add(NoRelay, "no relay tells that it runs", "",
			"start one; if it ended by itself, its log and cdc-relay check say why")
		found[len(found)-1].command = problem.Command(cfg.Table, "run")
	default:
		if cfg.Mode != relay.ModePoll && !v.Slot.Owned {
			name, part := v.Relays.NotStreaming()
			says := "a running relay publishes from the table, later than usual"
			if name == "" && !unseen { // it tells every few seconds
				last := v.Relays.Working()[0]
				says = last.Name() + " was last seen " + Duration(last.unseen) + " ago"
			}
			add(NotStreaming, "no relay streams: "+says, part.Detail, part.Fix)
		}
		if missed != "" {
			add(RelayGone, missed, "", Restart)
		}
	}
	for _, text := range v.differences {
		add(Differ, text, "", "give all relays of an outbox the same version and settings")
	}
	return found
}

// findings adds what the relay tells about itself.
func (r Relay) findings(add func(is Condition, text, detail, fix string)) {
	undeleted := Number(int64(r.Aside.Published)) + " messages were published, and their rows cannot be deleted"
	if r.Aside.Published == 1 {
		undeleted = "1 message was published, and its row cannot be deleted"
	}
	first := relay.AsideRow{}
	if len(r.Aside.First) > 0 {
		first = r.Aside.First[0]
	}
	for _, part := range r.Parts {
		switch {
		case part.Ready || r.Role == "standby" && part.Name != "publisher":
		case r.Role == "standby":
			add(RelayGone, r.Name()+" is a standby that cannot publish", r.Detail, "")
		case part.Name == "publisher":
			add(NotPublishing, r.outage(), r.Detail, "")
		case part.Name == "settle" && r.Stopped && r.Aside.Published > 0:
			add(Stopped, "publishing has stopped: "+undeleted, first.Error, first.Fix)
		case part.Name == "settle" && r.Stopped:
			add(Stopped, "publishing has stopped: rows of published messages cannot be deleted", part.Detail, part.Fix)
		case part.Name == "stream": // relayFindings has it
		default:
			add(DatabaseFails, "the relay cannot work on its tables", part.Detail, part.Fix)
		}
	}
	switch others := r.Aside.Rows - r.Aside.Published; {
	case r.Stopped:
	case r.Aside.Published > 0:
		add(SetAside, undeleted+"; other messages are not affected", first.Error, first.Fix)
	case others > 0:
		add(SetAside, Plural(int64(others), "rejected row")+" cannot be updated; other messages are not affected",
			first.Error, first.Fix)
	}
	if r.hasNoAnswers() {
		add(NoAnswers, "the publisher is connected, and has confirmed or rejected no message for "+Duration(r.silent()),
			"", "look whether RabbitMQ or the handler hangs")
	}
}

// outage says in words why nothing is published.
func (r Relay) outage() string {
	switch r.Phase {
	case "connecting":
		return "no message is published: the publisher has no connection to RabbitMQ"
	case "blocked":
		return "no message is published: RabbitMQ has an alarm and accepts no messages"
	case "paused":
		return "no message is published: the publisher pauses after failures, and tries again at intervals"
	}
	return "no message is published"
}

// messageFindings are about messages that a relay could not publish, those about most messages first.
func (v *Stats) messageFindings(cfg *relay.Config, blocked *operator.Key) (found []finding) {
	dead, retries := v.counts["dead_letters"], v.retries.N
	if all := v.counts["retrying"]; retries.Precision == operator.AtLeast && all.N > retries.N {
		retries = all
	}
	deadBehind, retriesBehind := v.behind(cfg, blocked)
	if blocked != nil && deadBehind.N+retriesBehind.N == 0 {
		found = append(found, v.blockedFinding(cfg.Table, blocked))
	}
	if dead.N > 0 {
		words := countOf(dead, "dead letter")
		found = append(found, v.failed(DeadLetters, words, cfg.Table, operator.Dead, dead.N, deadBehind))
	}
	if retries.N > 0 && (blocked == nil || blocked.Dead != nil || retries.N > 1) {
		words := countOf(retries, "rejected message") + " will be tried again"
		found = append(found, v.failed(Rejections, words, cfg.Table, operator.Retrying, retries.N, retriesBehind))
	}
	if n := v.counts["newer_version"]; n.N > 0 {
		sentence := countOf(n, "message") + verbOf(n, " waits", " wait") + " for a newer relay"
		found = append(found, finding{
			is: NewerVersion, text: sentence, fix: "update the relays", command: "cdc-relay --version",
			page: "/waiting?state=newer_version", messages: &n.N,
		})
	}
	slices.SortStableFunc(found, func(a, b finding) int { return cmp.Compare(*b.messages, *a.messages) })
	return found
}

// behind counts the messages that wait behind several dead letters, or behind several rejected messages. Both are 0 if
// other messages may block keys, too.
func (v *Stats) behind(cfg *relay.Config, blocked *operator.Key) (dead, retries operator.Count) {
	n := v.counts["blocked"]
	byDead := DeadLettersBlock(cfg) && v.counts["keys_behind_dead_letter"].N > 0
	switch byRetries := v.retries.N.N > 0; {
	case blocked == nil || v.counts["scheduled"].N > 0 || byDead && byRetries:
		return dead, retries
	case byDead && v.counts["dead_letters"].N > 1:
		return n, retries
	case !byDead && v.retries.N.N > 1:
		return dead, n
	}
	return dead, retries
}

// failed is a finding about n messages that failed, by cause, the largest first, and those that wait behind them.
func (v *Stats) failed(
	is Condition, words string, table outbox.Table, state operator.State, n int64, behind operator.Count,
) finding {
	f := finding{is: is, text: words, page: "/waiting?state=retrying", blocks: behind.N > 0}
	groups, then := v.retries, ""
	if state == operator.Dead {
		f.page, groups, then = "/dead-letters", v.dead, ", then resend them"
	}
	if f.blocks {
		f.text += ", and " + countOf(behind, "message") + verbOf(behind, " waits", " wait") + " behind them"
	}
	affected := n + behind.N
	f.messages = &affected
	selects := []string{"--state", string(state)}
	if len(groups.All) > 0 {
		largest := groups.All[0]
		if _, f.fix = explainGroup(largest); f.fix != "" {
			f.fix += then
		}
		selects = append(selects, "--reason", problem.ShellWord(largest.Reason))
	}
	f.command = problem.Command(table, "list", selects...)
	var causes []string
	before := ": "
	for _, g := range groups.All[:min(3, len(groups.All))] {
		number := partOf(groups, g.N) + " because "
		if len(groups.All) == 1 && g.N == n {
			before, number = ", ", "because "
		}
		meaning, _ := explainGroup(g)
		causes = append(causes, number+meaning+whereOf(g))
	}
	if len(causes) > 0 {
		f.also = f.text + ": " + codesOf(groups)
		f.text += before + strings.Join(causes, "; ")
	}
	if rest := len(groups.All) - len(causes); rest > 0 {
		f.text += "; and " + Plural(int64(rest), "other cause")
	}
	return f
}

// codesOf counts the messages of each code: "3 nack, 2 unroutable".
func codesOf(groups operator.Groups) string {
	var codes []string
	numbers := map[string]int64{}
	for _, g := range groups.All {
		code := OrElse(Shortened(g.Reason, 30), "without a reason")
		if numbers[code] += g.N; !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	for i, code := range codes {
		codes[i] = partOf(groups, numbers[code]) + " " + code
	}
	return strings.Join(codes, ", ")
}

// partOf is a number of messages, or their share if only some were read.
func partOf(groups operator.Groups, n int64) string {
	if groups.N.Precision == operator.AtLeast {
		return fmt.Sprintf("%d%%", 100*n/max(groups.N.N, 1))
	}
	return Number(n)
}

// blockedFinding is about the key with most rows that wait behind its first message.
func (v *Stats) blockedFinding(table outbox.Table, k *operator.Key) finding {
	behind, id := k.Behind, k.First.ID
	f := finding{is: BlockedKey, blocks: true, page: fmt.Sprintf("/message?id=%d", id)}
	key := Shortened(k.Key, 40)
	if k.Dead != nil { // its first message waits, too
		behind.N++
		f.page = fmt.Sprintf("/message?id=%d", *k.Dead)
		f.text = fmt.Sprintf("%s of key %s %s behind dead letter %d", countOf(behind, "message"), key,
			verbOf(behind, "waits", "wait"), *k.Dead)
		f.fix = "fix the cause of the dead letter, then resend it; or delete it"
		f.command = problem.Command(table, "explain", fmt.Sprint(*k.Dead))
	} else {
		f.text = fmt.Sprintf("%s of key %s %s behind message %d, which was rejected", countOf(behind, "message"), key,
			verbOf(behind, "waits", "wait"), id)
		meaning, fix := FailureOf(k.First.LastError, k.First.Exchange, "")
		if meaning != "" {
			f.text += ": " + meaning
		}
		f.fix, f.detail = fix, Printable(ValueOr(k.First.LastError, ""))
		f.command = problem.Command(table, "explain", fmt.Sprint(id))
	}
	f.messages = &behind.N
	return f
}

// serverFindings are about what the outbox costs the server. DepthKnown: a cause says already how many messages wait.
func (v *Stats) serverFindings(cfg *relay.Config, depthKnown bool) (found []finding) {
	if n := v.unsent(); n != nil && *n > MostDepth && !depthKnown {
		watch := problem.Command(cfg.Table, "stats", "--watch")
		found = append(found, finding{
			is: Depth, text: Number(*n) + " messages wait" + v.falls, command: watch, page: "/waiting", messages: n,
		})
	}
	check := finding{command: problem.Command(cfg.Table, "check"), page: "/check"}
	if v.Slot.WALStatus != nil && (*v.Slot.WALStatus == "unreserved" || *v.Slot.WALStatus == "lost") {
		check.is = SlotLost
		check.text = "Postgres removes the WAL of slot " + cfg.Names().Slot + " (wal_status " + *v.Slot.WALStatus + ")"
		found = append(found, check)
	} else if v.Slot.RetainedBytes != nil && *v.Slot.RetainedBytes > mostWAL {
		check.is, check.text = WAL, "slot "+cfg.Names().Slot+" retains "+Bytes(*v.Slot.RetainedBytes)+" of WAL"
		found = append(found, check)
	}
	for _, s := range v.IdleSlots {
		if s.RetainedBytes > mostWAL {
			check.is = WAL
			check.text = fmt.Sprintf("nobody uses slot %s of others, and it retains %s of WAL",
				Printable(s.Name), Bytes(s.RetainedBytes))
			found = append(found, check)
		}
	}
	return found
}

// unsent counts the messages whose time has come or that were rejected; nil: unknown.
func (v *Stats) unsent() *int64 {
	if v.QueueDepth == nil {
		return nil
	}
	n := *v.QueueDepth - v.counts["scheduled"].N - v.counts["expired"].N - v.counts["not_deleted"].N
	n = max(n, 0)
	return &n
}

func (v *Stats) andWait() string {
	n := v.unsent()
	switch {
	case n == nil || *n == 0:
		return ""
	case *n == 1:
		return "; 1 message waits" + v.falls
	}
	return "; " + Number(*n) + " messages wait" + v.falls
}

// calm describes an outbox in which all is well.
func (v *Stats) calm() string {
	var parts []string
	answers := len(v.Relays.Leading()) > 0
	if answers {
		parts = append(parts, Number(int64(v.PerSecond()+0.5))+" messages/s")
		if one := v.Relays[0].Latency; one != nil {
			parts = append(parts, "p99 "+latencyText(one.P99Seconds))
		}
	} else if n := v.unsent(); n != nil {
		parts = append(parts, cmp.Or(strings.TrimPrefix(v.andWait(), "; "), "no message waits"))
	}
	if owner := v.Slot.Owner; owner != nil {
		leader := ValueOr(owner.Client, ValueOr(owner.Application, ""))
		if host, _, err := net.SplitHostPort(leader); err == nil {
			leader = host
		}
		parts = append(parts, "leader "+OrElse(Printable(leader), fmt.Sprintf("Postgres process %d", owner.PID)))
	}
	if !answers {
		parts = append(parts, "by the tables alone: no relay tells what it does")
	}
	return strings.Join(parts, ", ")
}
