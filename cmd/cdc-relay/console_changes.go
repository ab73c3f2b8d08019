package main

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/operator"
)

// asked describes a change, before or after it is made.
type asked struct {
	picked
	Do      string
	All     bool
	Count   int64
	What    string // such as "12 dead letters"
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
	a := asked{Do: r.FormValue("do")}
	err := s.atDesk(ctx, func(ctx context.Context, d *desk) (err error) {
		cfg := *s.cfg
		d = &desk{d.Tables, d.conn, &cfg}
		if a.Do == "retry" && !retries(r) {
			return usagef("state %s: only messages that the broker rejected can be retried", r.FormValue("state"))
		}
		if a.picked, err = pick(d, r, "id", "routing-key", "exchange", "ordering-key", "reason", "older-than", "newer-than"); err != nil {
			return err
		}
		var said []string
		for _, f := range a.Fields {
			if f.Set {
				said = append(said, f.Label+" "+inQuotes(f.Value))
			}
		}
		a.Filters = orWord(strings.Join(said, ", "), "all")
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
	s.showChange(w, r, func(ctx context.Context, d *desk, a *asked) (err error) {
		switch a.Do {
		case "retry":
			var would operator.Retried
			would, err = d.RetryNow(ctx, d.cfg.looking.filter, changeBatch, true, unseen)
			a.Count, a.What = would.Due, rowsText(would.Due, "waiting retry")
		case "requeue", "purge":
			a.Count, err = d.CountDeadLetters(ctx, d.cfg.looking.filter)
			a.What = rowsText(a.Count, "dead letter")
		default:
			err = fmt.Errorf("there is no change %q", a.Do)
		}
		a.What = strings.Replace(a.What, "retrys", "retries", 1)
		return err
	})
}

// change runs the change.
func (s *console) change(w http.ResponseWriter, r *http.Request) {
	if !s.mayChange(w, r) {
		return
	}
	// A change that has begun ends even if the browser disconnects.
	s.showChange(w, r, func(ctx context.Context, d *desk, a *asked) (err error) {
		filter := d.cfg.looking.filter
		switch a.Do {
		case "retry":
			var done operator.Retried
			done, err = d.RetryNow(ctx, filter, changeBatch, false, unseen)
			a.Count, a.Done = done.Due, "made "+rowsText(done.Due, "message")+" due now"
		case "requeue":
			var done operator.Requeued
			done, err = d.Requeue(ctx, filter, changeBatch, unseen)
			a.Count, a.Done = done.Sent, "requeued "+rowsText(done.Sent, "dead letter")
			if done.Left > 0 {
				a.Left = fmt.Sprintf("the outbox rejects %s: %s", rowsText(done.Left, "dead letter"), done.Why)
			}
		case "purge":
			a.Count, err = d.Purge(ctx, filter, changeBatch, func(int64) error { return nil }, unseen)
			a.Done = "deleted " + rowsText(a.Count, "dead letter")
		default:
			return fmt.Errorf("there is no change %q", a.Do)
		}
		who, _ := r.Context().Value(user{}).(string)
		s.log.Warn("console changed rows", "event", event.ConsoleChanged, "change", a.Do, "user", printable(who), "from", r.RemoteAddr, "which", printable(a.Filters), "rows", a.Count, "error", err)
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

func (s *console) showChange(w http.ResponseWriter, r *http.Request, do func(context.Context, *desk, *asked) error) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
	defer cancel()
	a, err := s.changing(ctx, r, do)
	var body template.HTML
	status := http.StatusOK
	if err == nil {
		body, err = s.render("change", a)
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
