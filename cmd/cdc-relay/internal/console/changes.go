package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// asked describes a change, before or after it is made.
type asked struct {
	picked
	Do    operator.Verb
	Count int64
	What  string // such as "12 dead letters"
	Would string // such as "would be resent"
	Label string // of the button
	// At is when the user was asked, in microseconds since 1970.
	At int64
	// Typing: the user must type the number, because the change cannot be undone, or takes effect elsewhere.
	Typing bool
	// Grown: more rows match than the page showed before. Mistyped: the user typed another number.
	Grown, Mistyped bool
	Filters         string
	Back            string
	// Warnings say what will go wrong unless somebody does something first, and what the change means elsewhere.
	Warnings []string
	// Done says what was done; "" before the change.
	Done, Left string
}

// Deletes reports whether the change cannot be undone.
func (a asked) Deletes() bool { return deletes(a.Do) }

// doing is a change, or the question before it. It sets the numbers of the description.
type doing func(context.Context, *operator.Tables, *asked) error

// changing checks the request for a change of many rows, and calls do with the selected rows.
func (c *Console) changing(ctx context.Context, r *http.Request, do doing) (asked, error) {
	if err := r.ParseForm(); err != nil { // a missing filter would select other rows
		return asked{}, mistakef("the form cannot be read: %s", err)
	}
	a := asked{Do: operator.Verb(r.FormValue("do")), At: time.Now().UnixMicro()}
	err := c.with(ctx, c.sessions.changes, func(ctx context.Context, tables *operator.Tables) (err error) {
		if a.Do == operator.Retry && !retries(r) {
			return mistakef("state %s: only messages that RabbitMQ rejected can be sent again", r.FormValue("state"))
		}
		others := []string{"do", "shown", "at", "typed"}
		if a.Do == operator.Retry {
			others = append(others, "state")
		}
		names := []string{
			"id", "routing-key", "header", "exchange", "ordering-key", "reason", "older-than", "newer-than",
		}
		if ids := r.Form["id"]; len(ids) > 1 { // ticked rows
			r.Form.Set("id", strings.Join(ids, ","))
		}
		if a.picked, err = c.pick(r, names, others...); err != nil {
			return err
		}
		if err = a.mistake(); err != nil {
			return err
		}
		if (a.Do == operator.Delete || a.Do == operator.Bury) && len(a.filter.IDs)+len(a.filter.MessageIDs) == 0 {
			return mistakef("%s: want the id of a message", a.Do)
		}
		a.Filters, a.Back = a.inWords(), a.origin(r)
		return do(ctx, tables, &a)
	})
	return a, err
}

// inWords returns the filters for people.
func (a *asked) inWords() string {
	var said []string
	for _, f := range a.Fields {
		switch ticked := strings.Count(f.Value, ","); {
		case f.Set && f.Name == "id" && ticked > 0:
			said = append(said, fmt.Sprintf("the %d ticked rows", ticked+1))
		case f.Set:
			said = append(said, f.Label+" "+inQuotes(f.Value))
		}
	}
	return show.OrElse(strings.Join(said, ", "), "all")
}

// origin returns the URL of the page with the rows that the change selects.
func (a *asked) origin(r *http.Request) string {
	if r.Form.Has("id") && !strings.Contains(r.FormValue("id"), ",") {
		return "/message?" + a.query.Encode()
	}
	back := picked{Path: wordsOf(a.Do).path, query: a.query}
	back.query.Del("id")
	return back.with("state", r.FormValue("state"))
}

// ask shows how many rows a change would affect.
func (c *Console) ask(w http.ResponseWriter, r *http.Request) {
	if !c.mayChange(w, r) {
		return
	}
	c.showChange(r.Context(), w, r, question)
}

// question counts the rows that the change would affect.
func question(ctx context.Context, tables *operator.Tables, a *asked) error {
	change, err := a.change(a.filter)
	if err != nil {
		return err
	}
	n, err := tables.Count(ctx, change)
	a.count(n)
	if err != nil || n == 0 {
		return err
	}
	return a.warn(ctx, tables)
}

// mostWarned is how many of the rows are read for the warnings.
const mostWarned = 1000

// warn tells how many rows wait behind those of a change, or what these would do when they are sent.
func (a *asked) warn(ctx context.Context, tables *operator.Tables) error {
	change, err := a.change(a.filter)
	if err != nil {
		return err
	}
	if change.LetsGo() {
		behind, err := tables.Behind(ctx, change)
		a.Warnings = []string{show.BehindText(behind)}
		return err
	}
	state := map[operator.Verb]operator.State{
		operator.Requeue: operator.Dead, operator.Retry: operator.Retrying, operator.Replay: operator.Published,
	}[a.Do]
	if state == "" {
		return nil
	}
	list, err := tables.List(ctx, a.filter.In(state), operator.Page{Limit: mostWarned})
	if err != nil {
		return err
	}
	a.Warnings = failAgain(list.Rows)
	if a.Do == operator.Replay {
		a.Warnings = []string{"Consumers without an inbox act on these messages a second time."}
		a.Would += " to " + exchangesOf(list.Rows)
	}
	return nil
}

// failAgain says why messages would fail again, the most frequent cause first. The console does not ask RabbitMQ, so a
// cause may have been fixed.
func failAgain(rows []operator.Message) (warnings []string) {
	counts := map[string]int{}
	for _, m := range rows {
		meaning, fix := show.FailureOf(m.LastError, m.Exchange, m.Reason)
		if fix == "" || fix == problem.ReadError {
			continue
		}
		if m.Exchange != nil && *m.Exchange != "" {
			fix += " (exchange " + show.Shortened(*m.Exchange, 100) + ")"
		}
		counts["unless you first "+fix+": "+meaning]++
	}
	causes := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x, y))
	})
	for _, cause := range causes[:min(len(causes), 5)] {
		who := show.Plural(int64(counts[cause]), "message")
		if counts[cause] == len(rows) && len(rows) < mostWarned {
			who = map[bool]string{true: "It", false: "They"}[len(rows) == 1]
		}
		warnings = append(warnings, who+" will fail again "+cause+".")
	}
	return warnings
}

// exchangesOf names where messages go.
func exchangesOf(rows []operator.Message) string {
	var names []string
	for _, m := range rows {
		name := "the relay's own exchange"
		if m.Exchange != nil {
			name = "exchange " + show.Shortened(operator.ExchangeText(m.Exchange), 100)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 5 || len(rows) == mostWarned {
		names = append(names[:min(len(names), 5)], "others")
	}
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " and " + names[last]
	}
	return strings.Join(names, "")
}

// change returns the change of the rows that a filter selects.
func (a *asked) change(filter operator.Filter) (operator.Change, error) {
	if wordsOf(a.Do).would == "" {
		return operator.Change{}, fmt.Errorf("%w %q", errUnknownChange, a.Do)
	}
	return operator.Change{Do: a.Do, Filter: filter, Batch: operator.ChangeBatch}, nil
}

// count sets how many rows the change affects.
func (a *asked) count(n int64) {
	w := wordsOf(a.Do)
	a.Count, a.What, a.Would = n, w.rows(n), w.would
	a.Label = w.verb + " " + a.What
	if a.Do == operator.Bury {
		a.Label = w.verb
	}
	a.Typing = n > 1 && typed(a.Do)
	if a.Deletes() {
		a.Label += " for good"
	}
}

var (
	// errGrown: more rows match than the user has confirmed.
	errGrown         = errors.New("more rows match than were confirmed")
	errUnknownChange = errors.New("there is no change")
)

// asOf makes the ages of a filter count from the time of the question. A dead letter that died since is not selected.
func asOf(filter operator.Filter, at time.Time, dead bool) operator.Filter {
	since := max(0, time.Since(at))
	later := func(age time.Duration) time.Duration { return age + min(since, math.MaxInt64-age) }
	if dead || filter.OlderThan > 0 {
		filter.OlderThan = later(filter.OlderThan)
	}
	if filter.NewerThan > 0 {
		filter.NewerThan = later(filter.NewerThan)
	}
	return filter
}

// change runs the change. If more rows match than the user has confirmed, it asks again. A change continues after the
// browser has disconnected, until the console stops.
func (c *Console) change(w http.ResponseWriter, r *http.Request) {
	if !c.mayChange(w, r) {
		return
	}
	c.ending.RLock()
	defer c.ending.RUnlock()
	c.showChange(c.running, w, r, func(ctx context.Context, tables *operator.Tables, a *asked) error {
		shown, _ := strconv.ParseInt(r.FormValue("shown"), 10, 64) // without it, the user has confirmed nothing
		if at, err := strconv.ParseInt(r.FormValue("at"), 10, 64); err == nil {
			a.At = at
		}
		if typed(a.Do) && shown > 1 && number(r.FormValue("typed")) != shown {
			a.Mistyped = true
			return question(ctx, tables, a)
		}
		selected := int64(0)
		err := a.run(ctx, tables, func(total int64) error {
			if selected = total; total > shown {
				return errGrown
			}
			return nil
		})
		if errors.Is(err, errUnknownChange) {
			return err
		}
		if errors.Is(err, errGrown) {
			a.Done, a.Grown = "", true
			a.count(selected)
			return a.warn(ctx, tables)
		}
		who, _ := r.Context().Value(user{}).(string)
		c.cfg.Log.Warn("console changed rows", "event", event.ConsoleChanged, "change", a.Do,
			"user", show.Printable(who), "from", r.RemoteAddr, "which", show.Printable(a.Filters),
			"rows", a.Count, "error", err)
		return err
	})
}

// number reads a number as people type it; -1: it is none.
func number(text string) int64 {
	n, err := strconv.ParseInt(strings.NewReplacer(",", "", " ", "").Replace(text), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// run changes the rows if agreed returns nil for their number.
func (a *asked) run(ctx context.Context, tables *operator.Tables, agreed func(total int64) error) error {
	ofOutbox := slices.Contains([]operator.Verb{operator.Retry, operator.Delete, operator.Bury}, a.Do)
	change, err := a.change(asOf(a.filter, time.UnixMicro(a.At), !ofOutbox))
	if err != nil {
		return err
	}
	done, err := tables.Change(ctx, change, agreed, unseen)
	a.Count, a.Done, a.Left = done.Done, show.ChangedText(a.Do, done), show.LeftText(a.Do, done)
	return err
}

// retries reports whether the state in the request selects only messages that can be retried.
func retries(r *http.Request) bool {
	state := strings.TrimSpace(r.FormValue("state"))
	return state == "" || state == string(operator.Retrying)
}

func unseen(int64, int64) {}

// mayChange answers the request if the console is read-only.
func (c *Console) mayChange(w http.ResponseWriter, r *http.Request) bool {
	if c.cfg.AllowChanges {
		return true
	}
	const text = "<p>This console is read-only: start it with <code>--allow-changes</code>.</p>"
	c.write(w, r, answer{status: http.StatusForbidden, title: "Read-only", body: text})
	return false
}

func (c *Console) showChange(ctx context.Context, w http.ResponseWriter, r *http.Request, do doing) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	a, err := c.changing(ctx, r, do)
	page := answer{status: http.StatusOK, title: wordsOf(a.Do).verb, path: wordsOf(a.Do).path}
	if err == nil {
		page.body, err = c.render("change", a)
	}
	switch {
	case a.Grown:
		page.status = http.StatusConflict
	case a.Mistyped:
		page.status = http.StatusBadRequest
	}
	if err != nil {
		page.body, page.status = c.failure(err)
	}
	c.write(w, r, page)
}
