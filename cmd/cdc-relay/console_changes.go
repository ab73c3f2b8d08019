package main

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

// asked describes a change, before or after it is made.
type asked struct {
	picked
	Do    string
	All   bool
	Count int64
	What  string // such as "12 dead letters"
	// At is when the user was asked, in microseconds since 1970.
	At int64
	// Grown: more rows match than the page showed before.
	Grown   bool
	Filters string
	Back    string
	// Done says what was done; "" before the change.
	Done, Left string
}

// changing checks the request for a change of many rows, and calls do with the selected rows.
func (s *console) changing(ctx context.Context, r *http.Request, do func(context.Context, *desk, *asked) error) (asked, error) {
	if err := r.ParseForm(); err != nil { // a missing filter would select other rows
		return asked{}, usagef("the form cannot be read: %s", err)
	}
	a := asked{Do: r.FormValue("do"), At: time.Now().UnixMicro()}
	err := s.at(ctx, s.desks.changes, func(ctx context.Context, d *desk) (err error) {
		cfg := *s.cfg
		d = &desk{d.Tables, d.conn, &cfg}
		if a.Do == "retry" && !retries(r) {
			return usagef("state %s: only messages that RabbitMQ rejected can be retried", r.FormValue("state"))
		}
		others := []string{"do", "shown", "at"}
		if a.Do == "retry" {
			others = append(others, "state")
		}
		names := []string{"id", "routing-key", "exchange", "ordering-key", "reason", "older-than", "newer-than"}
		if a.picked, err = pick(d, r, names, others...); err != nil {
			return err
		}
		var said []string
		for _, f := range a.Fields {
			if f.Set {
				said = append(said, f.Label+" "+inQuotes(f.Value))
			}
		}
		a.Filters = show.OrElse(strings.Join(said, ", "), "all")
		a.All = d.cfg.looking.filter.Everything()
		switch {
		case r.Form.Has("id"):
			a.Back = "/message?" + a.Query
		case a.Do == "retry":
			a.Back = "/waiting?" + a.Query
		default:
			a.Back = "/dead-letters?" + a.Query
		}
		return do(ctx, d, &a)
	})
	return a, err
}

// ask shows how many rows a change would affect.
func (s *console) ask(w http.ResponseWriter, r *http.Request) {
	if !s.mayChange(w, r) {
		return
	}
	s.showChange(r.Context(), w, r, func(ctx context.Context, d *desk, a *asked) (err error) {
		switch a.Do {
		case "retry":
			var would operator.Retried
			would, err = d.RetryNow(ctx, d.cfg.looking.filter, operator.ChangeBatch, true, nil, unseen)
			a.count(would.Due)
		case "requeue", "purge":
			var n int64
			n, err = d.CountDeadLetters(ctx, d.cfg.looking.filter)
			a.count(n)
		default:
			err = fmt.Errorf("there is no change %q", a.Do)
		}
		return err
	})
}

// count sets how many rows the change affects.
func (a *asked) count(n int64) {
	a.Count, a.What = n, show.Plural(n, "dead letter")
	if a.Do == "retry" {
		a.What = strings.Replace(show.Plural(n, "waiting retry"), "retrys", "retries", 1)
	}
}

// errGrown: more rows match than the user has confirmed.
var errGrown = errors.New("more rows match than were confirmed")

// asOf makes the ages of a filter count from the time of the question. A dead letter that died since is not selected.
func asOf(filter operator.Filter, at time.Time, dead bool) operator.Filter {
	since := max(0, time.Since(at))
	if dead || filter.OlderThan > 0 {
		filter.OlderThan += since
	}
	if filter.NewerThan > 0 {
		filter.NewerThan += since
	}
	return filter
}

// change runs the change. If more rows match than the user has confirmed, it asks again. A change continues after the
// browser has disconnected, until the console stops.
func (s *console) change(w http.ResponseWriter, r *http.Request) {
	if !s.mayChange(w, r) {
		return
	}
	s.showChange(s.running, w, r, func(ctx context.Context, d *desk, a *asked) (err error) {
		shown, _ := strconv.ParseInt(r.FormValue("shown"), 10, 64) // without it, the user has confirmed nothing
		if at, err := strconv.ParseInt(r.FormValue("at"), 10, 64); err == nil {
			a.At = at
		}
		filter := asOf(d.cfg.looking.filter, time.UnixMicro(a.At), a.Do != "retry")
		selected := int64(0)
		agreed := func(total int64) error {
			if selected = total; total > shown {
				return errGrown
			}
			return nil
		}
		switch a.Do {
		case "retry":
			var done operator.Retried
			done, err = d.RetryNow(ctx, filter, operator.ChangeBatch, false, agreed, unseen)
			a.Count, a.Done = done.Due, "made "+show.Plural(done.Due, "message")+" due now"
		case "requeue":
			var done operator.Requeued
			done, err = d.Requeue(ctx, filter, operator.ChangeBatch, agreed, unseen)
			a.Count, a.Done = done.Sent, "requeued "+show.Plural(done.Sent, "dead letter")
			if done.Left > 0 {
				a.Left = fmt.Sprintf("the outbox rejects %s: %s", show.Plural(done.Left, "dead letter"), done.Why)
			}
		case "purge":
			a.Count, err = d.Purge(ctx, filter, operator.ChangeBatch, agreed, unseen)
			a.Done = "deleted " + show.Plural(a.Count, "dead letter")
		default:
			return fmt.Errorf("there is no change %q", a.Do)
		}
		if errors.Is(err, errGrown) {
			a.Done, a.Grown = "", true
			a.count(selected)
			return nil
		}
		who, _ := r.Context().Value(user{}).(string)
		s.log.Warn("console changed rows", "event", event.ConsoleChanged, "change", a.Do, "user", show.Printable(who), "from", r.RemoteAddr, "which", show.Printable(a.Filters), "rows", a.Count, "error", err)
		return err
	})
}

// retries reports whether the state in the request selects only messages that "retry" accepts.
func retries(r *http.Request) bool {
	state := strings.TrimSpace(r.FormValue("state"))
	return state == "" || state == string(operator.Retrying)
}

func unseen(int64, int64) {}

func (s *console) mayChange(w http.ResponseWriter, r *http.Request) bool {
	if s.cfg.consoling.allowChanges {
		return true
	}
	s.write(w, r, http.StatusForbidden, "Read-only", "", "", "<p>This console is read-only: start it with <code>--allow-changes</code>.</p>")
	return false
}

func (s *console) showChange(ctx context.Context, w http.ResponseWriter, r *http.Request, do func(context.Context, *desk, *asked) error) {
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	a, err := s.changing(ctx, r, do)
	var body template.HTML
	status := http.StatusOK
	if err == nil {
		body, err = s.render("change", a)
	}
	if a.Grown {
		status = http.StatusConflict
	}
	if err != nil {
		body, status = s.failure(err)
	}
	path := "/dead-letters"
	if a.Do == "retry" {
		path = "/waiting"
	}
	s.write(w, r, status, strings.ToUpper(a.Do[:min(1, len(a.Do))])+a.Do[min(1, len(a.Do)):], path, "", body)
}
