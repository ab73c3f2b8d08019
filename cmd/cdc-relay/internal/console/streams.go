package console

import (
	"cmp"
	"context"
	"errors"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// mostStreams is how many pages may update themselves at a time.
	mostStreams = 50
	// streamEvery is how often a page is rendered again.
	streamEvery = 2 * time.Second
	// streamLife is how long a page updates itself before its browser must ask again.
	streamLife = 15 * time.Minute
)

// streams are the pages that update themselves, oldest first. Their number is bounded.
type streams struct {
	mu  sync.Mutex
	all []*openStream
}

type openStream struct {
	client string
	end    context.CancelCauseFunc
}

var errDisplaced = errors.New("newer pages of the console update themselves")

// open adds a stream. If there are too many, it ends the oldest stream of the client that has the most, which may be
// the same client. Thus a client with many pages cannot keep others out. The caller calls done at the end.
func (s *streams) open(ctx context.Context, client string) (streaming context.Context, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	streaming, end := context.WithCancelCause(ctx)
	one := &openStream{client, end}
	s.all = append(s.all, one)
	if len(s.all) > mostStreams {
		victim := s.all[s.excess()]
		s.remove(victim)
		victim.end(errDisplaced)
	}
	return streaming, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(one)
		end(nil)
	}
}

// excess returns the oldest stream of a client with the most streams. If clients have equally many, it is that of the
// newest stream, which has just come.
func (s *streams) excess() int {
	counts := map[string]int{}
	for _, one := range s.all {
		counts[one.client]++
	}
	most := s.all[len(s.all)-1].client
	for _, one := range s.all {
		if counts[one.client] > counts[most] {
			most = one.client
		}
	}
	if counts[most] == 1 {
		return 0 // each client has one
	}
	return slices.IndexFunc(s.all, func(one *openStream) bool { return one.client == most })
}

func (s *streams) remove(gone *openStream) {
	s.all = slices.DeleteFunc(s.all, func(one *openStream) bool { return one == gone })
}

// clientOf tells clients apart: by user and address.
func clientOf(r *http.Request) string {
	name, _ := r.Context().Value(user{}).(string)
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return name + "\n" + host
}

// events sends the body of a page each time it changes.
func (c *Console) events(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet { // a pattern for GET also matches HEAD, whose answer would have no end
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "want GET", http.StatusMethodNotAllowed)
		return
	}
	of, err := url.Parse(r.URL.Query().Get("of"))
	if err != nil || of.Host != "" {
		http.Error(w, "want a page", http.StatusBadRequest)
		return
	}
	for _, p := range c.pages() {
		asked := requestFor(r, of)
		if p.path == of.Path && asked.ParseForm() == nil && p.follows(asked) {
			ctx, done := c.streams.open(r.Context(), clientOf(r))
			defer done()
			c.stream(ctx, w, asked, p)
			return
		}
	}
	http.Error(w, "want a page", http.StatusBadRequest)
}

// requestFor returns the request for a page on behalf of the user who subscribes to its updates.
func requestFor(r *http.Request, page *url.URL) *http.Request {
	asked := r.Clone(r.Context())
	asked.URL, asked.Form, asked.PostForm = page, nil, nil
	return asked
}

// eventData returns an event with this HTML. In its data field, a carriage return also ends a line.
func eventData(name string, body template.HTML) string {
	lines := strings.NewReplacer("\r", "&#13;", "\n", "\ndata: ").Replace(string(body))
	return "event: " + name + "\ndata: " + lines + "\n\n"
}

// update is what changes on an open page.
type update struct{ verdict, body template.HTML }

// since returns the events for what differs.
func (u update) since(before update) string {
	events := ""
	if u.verdict != before.verdict {
		events += eventData("verdict", u.verdict)
	}
	if u.body != before.body {
		events += eventData("message", u.body)
	}
	return cmp.Or(events, ": nothing new\n\n")
}

// stream sends the verdict and the body of the page when the stream begins, and again when it differs.
func (c *Console) stream(ctx context.Context, w http.ResponseWriter, asked *http.Request, p page) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	ticker := time.NewTicker(streamEvery)
	defer ticker.Stop()
	life := time.NewTimer(streamLife)
	defer life.Stop()
	control := http.NewResponseController(w)
	send := func(event string) bool {
		// A client that does not read must not hold its place.
		if control.SetWriteDeadline(time.Now().Add(writeTimeout)) != nil {
			return false
		}
		_, err := w.Write([]byte(event))
		return err == nil && control.Flush() == nil
	}
	for before := (update{}); ; {
		var now update
		now.body, _ = c.body(ctx, c.sessions.updates, asked, p)
		if now.verdict, _ = c.render("verdict", c.history.verdict()); ctx.Err() == nil && !send(now.since(before)) {
			return
		}
		before = now
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errDisplaced) {
				send("event: displaced\ndata: " + errDisplaced.Error() + "\n\n")
			}
			return
		case <-life.C:
			return
		case <-ticker.C:
		}
	}
}
