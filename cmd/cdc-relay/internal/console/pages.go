package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// page is one page of the console.
type page struct {
	path, title, template string
	// updates: the page updates itself. alone: it needs no connection to the database.
	updates, alone bool
	// view returns the data of the template. The tables are nil if the page is alone.
	view func(ctx context.Context, tables *operator.Tables, r *http.Request) (any, error)
}

// follows reports whether the page updates itself. A search by message_id does not: no index covers all. It needs the
// parsed form of the request.
func (p page) follows(r *http.Request) bool {
	_, err := strconv.ParseInt(strings.TrimSpace(r.FormValue("id")), 10, 64)
	return p.updates && (p.path != "/message" || err == nil)
}

// pages are the pages in the order of the navigation.
func (c *Console) pages() []page {
	return []page{
		{"/", "Overview", "overview", true, true, c.overviewPage},
		{"/waiting", "Waiting", "list", true, false, c.waitingPage},
		{"/keys", "Keys", "keys", true, false, c.keysPage},
		{"/dead-letters", "Dead letters", "list", true, false, c.deadPage},
		{"/published", "Published", "list", true, false, c.publishedPage},
		{"/tail", "Live", "tail", true, false, c.tailPage},
		{"/message", "Message", "message", true, false, c.messagePage},
		{"/relays", "Relays", "relays", true, true, c.relaysPage},
		{"/check", "Check", "check", false, true, c.checkPage},
	}
}

// The time that the queries of a page may take. A search for a message_id may read a whole table.
const (
	pageTimeout   = 15 * time.Second
	searchTimeout = time.Minute
)

// mistake is an error in a request, which only the sender can fix.
type mistake struct{ text string }

func (m *mistake) Error() string { return m.text }

func mistakef(format string, args ...any) error {
	return &mistake{fmt.Sprintf(format, args...)}
}

// show answers a request for a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, p page) {
	if err := r.ParseForm(); err != nil { // a missing filter would show other rows
		body, status := c.failure(mistakef("the address cannot be read: %s", err))
		c.write(w, r, answer{status: status, title: p.title, path: p.path, body: body})
		return
	}
	if r.FormValue(filterForm) != "" {
		http.Redirect(w, r, address(p.path, r.Form), http.StatusSeeOther)
		return
	}
	follows := p.follows(r)
	if r.Header.Get(updateHeader) != "" && follows {
		c.update(w, r, p)
		return
	}
	body, status := c.body(r.Context(), c.sessions.pages, r, p)
	if p.path == "/check" && c.checks.run() {
		w.Header().Set("Refresh", "3")
	}
	c.write(w, r, answer{
		status: status, title: p.title, path: p.path, updates: status == http.StatusOK && follows, body: body,
	})
}

// updateHeader is set by the script of a page that asks only for what changes on it.
const updateHeader = "X-Update"

// update sends what changes on a page: the verdict and the body.
func (c *Console) update(w http.ResponseWriter, r *http.Request, p page) {
	body, _ := c.body(r.Context(), c.sessions.updates, r, p) // an error is a body, too
	verdict, _ := c.verdict(p.path)                          // the template is a part of the program
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]template.HTML{"live": body, "verdict": verdict}) //nolint:errcheck // as write
}

// answer is what a request gets, without the HTML around it.
type answer struct {
	status int
	title  string
	// path is that of the page which the navigation marks as open; "": none.
	path string
	// updates: the page updates itself.
	updates bool
	body    template.HTML
}

// frame is the data of the HTML around a page.
type frame struct {
	Pages   []navigation
	Title   string
	Table   string
	User    string
	Changes bool
	Updates bool
	Verdict template.HTML
	Body    template.HTML
}

type navigation struct {
	Path, Title string
	Here        bool
}

// write sends a page.
func (c *Console) write(w http.ResponseWriter, r *http.Request, a answer) {
	f := frame{
		Title:   a.title,
		Table:   c.relay().Table.String(),
		Changes: c.cfg.AllowChanges,
		Updates: a.updates,
		Body:    a.body,
	}
	f.User, _ = r.Context().Value(user{}).(string)
	for _, p := range c.pages() {
		if p.path != "/message" { // the search leads there
			f.Pages = append(f.Pages, navigation{p.path, p.title, p.path == a.path})
		}
	}
	var text template.HTML
	verdict, err := c.verdict(a.path)
	if err == nil {
		f.Verdict = verdict
		text, err = c.render("frame", f)
	}
	if err != nil {
		a.status = http.StatusInternalServerError
		text = template.HTML(template.HTMLEscapeString(err.Error())) //nolint:gosec // escaped
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(a.status)
	w.Write([]byte(text)) //nolint:errcheck // the client may be gone
}

// body returns the part of a page that updates, and its status. It queries over one of these sessions.
func (c *Console) body(
	ctx context.Context, over chan *operator.Tables, r *http.Request, p page,
) (template.HTML, int) {
	timeout := pageTimeout
	if p.path == "/message" {
		timeout = searchTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var view any
	var err error
	if p.alone {
		view, err = p.view(ctx, nil, r)
	} else {
		err = c.with(ctx, over, func(ctx context.Context, tables *operator.Tables) error {
			view, err = p.view(ctx, tables, r)
			return err
		})
	}
	if err != nil {
		return c.failure(err)
	}
	text, err := c.render(p.template, view)
	if err != nil {
		return c.failure(err)
	}
	if m, ok := view.(interface{ mistaken() bool }); ok && m.mistaken() {
		return text, http.StatusBadRequest
	}
	return text, http.StatusOK
}

// failure shows an error in place of a page.
func (c *Console) failure(err error) (template.HTML, int) {
	text, failed := c.render("failure", map[string]string{
		"Error": string(show.Redact([]byte(show.OneLine(err.Error())))),
		"Hint":  string(show.Redact([]byte(problem.Hint(err)))),
	})
	if failed != nil {
		escaped := template.HTML(template.HTMLEscapeString(failed.Error())) //nolint:gosec // escaped
		return escaped, http.StatusInternalServerError
	}
	if errors.As(err, new(*mistake)) || errors.Is(err, operator.ErrCursor) {
		return text, http.StatusBadRequest
	}
	return text, http.StatusServiceUnavailable
}

// parseTemplates parses the templates of all pages.
func parseTemplates() *template.Template {
	functions := template.FuncMap{
		"timed":  timed,
		"clock":  clock,
		"opens":  opens,
		"rows":   show.Plural,
		"quoted": inQuotes,
		"orNone": func(s string) string { return show.OrElse(s, "no reason") },
		"orElse": func(s *string, otherwise string) string { return show.ValueOr(s, otherwise) },
	}
	return template.Must(template.New("").Funcs(functions).ParseFS(web, "web/*.html")) // the files are embedded
}

// opens says what a button to a page of the verdict shows.
func opens(page string) string {
	path, query, _ := strings.Cut(page, "?")
	texts := map[string]string{
		"/dead-letters": "Show the dead letters", "/check": "Show what check says", "/message": "Show the message",
		"/relays": "Show the relays", "state=retrying": "Show the rejected messages",
	}
	return cmp.Or(texts[path], texts[query], "Show what waits")
}

func (c *Console) render(name string, view any) (template.HTML, error) {
	var b bytes.Buffer
	if err := c.templates.ExecuteTemplate(&b, name, view); err != nil {
		return "", err
	}
	return template.HTML(show.SafeHTML(b.String())), nil //nolint:gosec // the template has escaped it
}

// facts are pairs of name and value.
type facts [][2]string

// Row adds a pair. The package show calls it.
func (f *facts) Row(columns ...string) {
	*f = append(*f, [2]string{columns[0], strings.Join(columns[1:], " ")})
}

// take removes rows with these names, and returns the value of the last one.
func (f *facts) take(names ...string) (value string) {
	*f = slices.DeleteFunc(*f, func(row [2]string) bool {
		if !slices.Contains(names, row[0]) {
			return false
		}
		value = row[1]
		return true
	})
	return value
}
