package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/relay"
)

//go:embed console
var consoleFiles embed.FS

// consolePage is one page. Its template has the same name.
type consolePage struct {
	path, title, template string
	// updates: the page updates itself. alone: it needs no connection to the database.
	updates, alone bool
	view           func(ctx context.Context, d *desk, r *http.Request) (any, error)
}

// follows reports whether the page updates itself. A search by message_id does not: no index covers it.
func (p consolePage) follows(r *http.Request) bool {
	_, err := strconv.ParseInt(strings.TrimSpace(r.FormValue("id")), 10, 64)
	return p.updates && (p.path != "/message" || err == nil)
}

func (s *console) pages() []consolePage {
	return []consolePage{
		{"/", "Overview", "overview", true, true, s.overviewPage},
		{"/waiting", "Waiting", "waiting", true, false, s.waitingPage},
		{"/keys", "Keys", "keys", true, false, s.keysPage},
		{"/dead-letters", "Dead letters", "dead", true, false, s.deadPage},
		{"/published", "Published", "published", true, false, s.publishedPage},
		{"/message", "One message", "message", true, false, s.messagePage},
		{"/check", "Check", "check", false, true, s.checkPage},
	}
}

// mostForm limits the size of a form in bytes.
const mostForm = 64 << 10

// handler serves the pages. The end of running ends changes and checks.
func (s *console) handler(running context.Context) http.Handler {
	s.running = running
	mux := http.NewServeMux()
	for _, page := range s.pages() {
		path := page.path
		if path == "/" {
			path = "/{$}"
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { s.show(w, r, page) })
	}
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /change", s.ask)
	mux.HandleFunc("POST /change", s.change)
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			text, err := consoleFiles.ReadFile("console/" + name)
			if err != nil {
				panic(err) // the file is embedded
			}
			w.Header().Set("Content-Type", kind)
			w.Write(text) //nolint:errcheck // the client may be gone
		})
	}
	return secure(timely(s.gate.guard(http.MaxBytesHandler(mux, mostForm))))
}

// frame is the data of the HTML around a page.
type frame struct {
	Pages   []navigation
	Title   string
	Table   string
	User    string
	Changes bool
	// Events is the URL of the page's updates; "": the page has none.
	Events string
	Body   template.HTML
}

type navigation struct {
	Path, Title string
	Here        bool
}

func (s *console) show(w http.ResponseWriter, r *http.Request, page consolePage) {
	if err := r.ParseForm(); err != nil { // a missing filter would show other rows
		body, status := s.failure(usagef("the address cannot be read: %s", err))
		s.write(w, r, status, page.title, page.path, "", body)
		return
	}
	if r.FormValue(filterForm) != "" {
		http.Redirect(w, r, address(page.path, r.Form), http.StatusSeeOther)
		return
	}
	body, status := s.body(r.Context(), s.desks.pages, r, page)
	if page.path == "/check" && s.checks.run() {
		w.Header().Set("Refresh", "3")
	}
	events := ""
	if status == http.StatusOK && page.follows(r) {
		events = "/events?" + url.Values{"of": {r.URL.RequestURI()}}.Encode()
	}
	s.write(w, r, status, page.title, page.path, events, body)
}

func (s *console) write(w http.ResponseWriter, r *http.Request, status int, title, path, events string, body template.HTML) {
	f := frame{Title: title, Table: s.cfg.relay.Table.String(), Changes: s.cfg.consoling.allowChanges, Events: events, Body: body}
	f.User, _ = r.Context().Value(user{}).(string)
	for _, page := range s.pages() {
		f.Pages = append(f.Pages, navigation{page.path, page.title, page.path == path})
	}
	text, err := s.render("frame", f)
	if err != nil {
		status, text = http.StatusInternalServerError, template.HTML(template.HTMLEscapeString(err.Error())) //nolint:gosec // escaped
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write([]byte(text)) //nolint:errcheck // the client may be gone
}

// body returns the part of a page that updates. It queries over one of these connections.
func (s *console) body(ctx context.Context, over chan *desk, r *http.Request, page consolePage) (template.HTML, int) {
	timeout := pageTimeout
	if page.path == "/message" {
		timeout = searchTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var view any
	var err error
	if page.alone {
		view, err = page.view(ctx, nil, r)
	} else {
		err = s.at(ctx, over, func(ctx context.Context, d *desk) error {
			cfg := *s.cfg
			view, err = page.view(ctx, &desk{d.Tables, d.conn, &cfg}, r)
			return err
		})
	}
	if err != nil {
		return s.failure(err)
	}
	text, err := s.render(page.template, view)
	if err != nil {
		return s.failure(err)
	}
	if m, ok := view.(messageShown); ok && m.mistaken {
		return text, http.StatusBadRequest
	}
	return text, http.StatusOK
}

// failure shows an error in place of a page.
func (s *console) failure(err error) (template.HTML, int) {
	text, failed := s.render("failure", map[string]string{
		"Error": string(show.Redact([]byte(show.OneLine(err.Error())))), "Hint": string(show.Redact([]byte(problem.Hint(err)))),
	})
	if failed != nil {
		return template.HTML(template.HTMLEscapeString(failed.Error())), http.StatusInternalServerError //nolint:gosec // escaped
	}
	var usage *usageError
	if errors.As(err, &usage) || errors.Is(err, operator.ErrCursor) {
		return text, http.StatusBadRequest
	}
	return text, http.StatusServiceUnavailable
}

// consoleTemplates parses the templates of all pages.
func consoleTemplates() (*template.Template, error) {
	return template.New("").Funcs(template.FuncMap{
		"duration": show.Duration, "time": show.Time, "count": show.Count, "next": show.NextTime, "rows": show.Plural, "quoted": inQuotes,
		"orElse": func(s *string, otherwise string) string { return show.ValueOr(s, otherwise) },
		// query is a template.URL, because a template would escape a string a second time, with its "=".
		"query": func(name, value string) template.URL {
			return template.URL(url.Values{name: {value}}.Encode()) //nolint:gosec // it is encoded
		},
		"since": func(now, then time.Time) string { return show.Duration(now.Sub(then)) },
	}).ParseFS(consoleFiles, "console/*.html")
}

func (s *console) render(name string, view any) (template.HTML, error) {
	var b bytes.Buffer
	if err := s.looks.ExecuteTemplate(&b, name, view); err != nil {
		return "", err
	}
	return template.HTML(show.SafeHTML(b.String())), nil //nolint:gosec // the template has escaped it
}

func (s *console) overviewPage(context.Context, *desk, *http.Request) (any, error) {
	return s.history.overview(s.cfg, s.process), nil
}

type listed[T any] struct {
	picked
	Rows []T
}

func (s *console) changes(names ...string) []string {
	if !s.cfg.consoling.allowChanges {
		return nil
	}
	return names
}

func (s *console) waitingPage(ctx context.Context, d *desk, r *http.Request) (any, error) {
	p, err := pick(d, r, []string{"state", "routing-key", "exchange", "ordering-key", "older-than", "newer-than", "reason"}, "after")
	if err != nil {
		return nil, err
	}
	list, err := d.List(ctx, d.cfg.looking.filter, d.cfg.page())
	p.goOn(list.Next)
	if retries(r) {
		p.Changes = s.changes("retry")
	}
	return listed[operator.Waiting]{p, list.Rows}, err
}

func (s *console) deadPage(ctx context.Context, d *desk, r *http.Request) (any, error) {
	p, err := pick(d, r, []string{"routing-key", "exchange", "ordering-key", "reason", "older-than", "newer-than"}, "after")
	if err != nil {
		return nil, err
	}
	list, err := d.DeadLetters(ctx, d.cfg.looking.filter, d.cfg.page())
	p.goOn(list.Next)
	p.Changes = s.changes("requeue", "purge")
	return listed[operator.DeadMessage]{p, list.Rows}, err
}

func (s *console) publishedPage(ctx context.Context, d *desk, r *http.Request) (any, error) {
	p, err := pick(d, r, []string{"routing-key", "exchange", "ordering-key", "older-than", "newer-than"}, "after")
	if err != nil {
		return nil, err
	}
	list, err := d.PublishedMessages(ctx, d.cfg.looking.filter, d.cfg.page())
	p.goOn(list.Next)
	return listed[operator.PublishedMessage]{p, list.Rows}, err
}

// shownKey is a key and the reason why it waits.
type shownKey struct {
	operator.Key
	Why string
}

type keysShown struct {
	listed[shownKey]
	Parked bool
}

func (s *console) keysPage(ctx context.Context, d *desk, r *http.Request) (any, error) {
	p, err := pick(d, r, nil, "parked", "after")
	if err != nil {
		return nil, err
	}
	d.cfg.looking.parked = r.FormValue("parked") != ""
	if d.cfg.looking.parked {
		p.Query = "parked=1"
	}
	around, err := d.surroundings(ctx)
	if err != nil {
		return nil, err
	}
	list, err := d.keysPage(ctx, d.cfg.page())
	p.goOn(list.Next)
	shown := keysShown{listed[shownKey]{picked: p}, d.cfg.looking.parked}
	for _, key := range list.Rows {
		shown.Rows = append(shown.Rows, shownKey{key, around.Why(key)})
	}
	return shown, err
}

// messageShown is the data of the page of one message.
type messageShown struct {
	ID       string
	Error    string
	Messages []oneMessage
	// mistaken: the ID is none.
	mistaken bool
}

type oneMessage struct {
	Title   string
	Facts   facts
	Changes []string
	ID      string // the message_id
}

func (s *console) messagePage(ctx context.Context, d *desk, r *http.Request) (any, error) {
	if err := onlyParameters(r, "id"); err != nil {
		return nil, err
	}
	shown := messageShown{ID: strings.TrimSpace(r.FormValue("id"))}
	if shown.ID == "" {
		return shown, nil
	}
	name, err := operator.ParseName(shown.ID)
	if err != nil {
		shown.Error, shown.mistaken = err.Error(), true
		return shown, nil
	}
	waiting, dead, err := d.Explain(ctx, name, s.cfg.looking.showPayload)
	if err != nil {
		return nil, err
	}
	around, err := d.surroundings(ctx)
	if err != nil {
		return nil, err
	}
	published, err := d.PublishedIfKept(ctx, name, s.cfg.looking.showPayload)
	if err != nil && len(waiting)+len(dead) == 0 {
		return nil, err
	}
	for _, w := range waiting {
		one := oneMessage{Title: "Waiting: " + string(w.State), ID: w.MessageID.String()}
		around.Details(&one.Facts, w)
		if w.State == operator.Retrying {
			one.Changes = s.changes("retry")
		}
		shown.Messages = append(shown.Messages, one)
	}
	for _, letter := range dead {
		one := oneMessage{Title: "Dead letter", ID: letter.MessageID.String(), Changes: s.changes("requeue", "purge")}
		show.Details(&one.Facts, d.cfg.relay.Table.DeadLetter(), letter.StoredMessage)
		show.DeathDetails(&one.Facts, d.cfg.relay.Table, letter)
		shown.Messages = append(shown.Messages, one)
	}
	for _, m := range published {
		one := oneMessage{Title: "Published", ID: m.MessageID.String()}
		one.Facts.Row("published", show.Time(m.PublishedAt)+", "+show.Duration(m.ReadAt.Sub(m.PublishedAt))+" ago")
		show.Details(&one.Facts, d.cfg.relay.Table.Published(), m.StoredMessage)
		shown.Messages = append(shown.Messages, one)
	}
	if len(shown.Messages) == 0 {
		shown.Error = shown.ID + " is neither in the outbox, nor in the dead-letter table, nor in the history: it was delivered and deleted, or never committed."
	}
	return shown, nil
}

// blocks reports whether a dead letter blocks its key.
func (c *config) blocks() bool { return c.relay.OnDeadLetter == relay.OnDeadLetterBlock }
