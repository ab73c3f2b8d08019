package console

import (
	"context"
	"embed"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/operator"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/service"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/relay"
)

// Config is what a console shows, and to whom. New copies it.
type Config struct {
	// Source knows the relays and their settings. Its table is always the same.
	Source *show.Source
	// Access says who may open the console.
	Access Access
	// AllowChanges lets every user of the console resend and delete messages.
	AllowChanges bool
	// ShowPayload shows bodies on the page of one message.
	ShowPayload bool
	Limits      Limits
	// Log gets changes of rows and failed logins.
	Log *slog.Logger

	// Open connects to the database. The console calls it from several goroutines, and closes the connections. The
	// error may have a method Hint() string, which the page shows.
	Open func(ctx context.Context) (*operator.Tables, error)
	// Check examines the servers for the page "check". At most one call runs at a time, for at most two minutes. It
	// must not send messages.
	Check func(ctx context.Context) ([]doctor.Finding, error)
	// SetFilter sets the condition of a filter from the text of a user. The name is that of a flag, such as older-than.
	// Its error says which texts are valid.
	SetFilter func(f *operator.Filter, name, text string) error
}

// Limits says how much the pages show.
type Limits struct {
	// Rows is the number of rows on one page of a list, at least 1.
	Rows int
	// Failures is how many of the most frequent failures the overview shows, 0 or more.
	Failures int
	// CountAll counts all rows for the overview, however long that takes. Else counts beyond 10,000 are estimates.
	CountAll bool
}

// Console serves the pages.
type Console struct {
	cfg       Config
	gate      *gate
	sessions  sessions
	history   *history
	templates *template.Template
	checks    checks
	// checkWait is how long the page "check" waits for a running check.
	checkWait time.Duration
	// running ends with the console.
	running context.Context //nolint:containedctx // changes and checks outlive their requests
	// ending is locked for reading by each change: the console ends after the last one.
	ending sync.RWMutex
}

// New returns a console that has no connection yet. It fails if cfg.Access would let anybody in, or choose a user name.
// The error names the flags, and may have a hint.
func New(cfg Config) (*Console, error) {
	if err := cfg.Access.validate(); err != nil {
		return nil, err
	}
	return &Console{
		cfg:       cfg,
		gate:      newGate(cfg.Access, cfg.Log),
		sessions:  newSessions(),
		history:   newHistory(cfg),
		templates: parseTemplates(),
		checkWait: checkWait,
	}, nil
}

// relay returns the settings of the relays.
func (c *Console) relay() *relay.Config { return c.cfg.Source.Known().Config }

// Serve answers requests until ctx is done, and closes the listener. It returns when all changes and checks have ended.
func (c *Console) Serve(ctx context.Context, listener net.Listener) error {
	actors, running := errgroup.WithContext(ctx)
	actors.Go(func() error { c.keepHistory(running); return nil })
	actors.Go(func() error { return service.Answer(running, listener, c.handler(running), time.Second, c.cfg.Log) })
	err := actors.Wait()
	c.checks.running.Wait()
	c.ending.Lock() // a change that was begun tells what it has done
	defer c.ending.Unlock()
	c.sessions.close(ctx)
	return err
}

//go:embed web
var web embed.FS

// mostForm limits the size of a form in bytes.
const mostForm = 64 << 10

// handler serves the pages. The end of running ends changes and checks.
func (c *Console) handler(running context.Context) http.Handler {
	c.running = running
	mux := http.NewServeMux()
	for _, p := range c.pages() {
		path := p.path
		if path == "/" {
			path = "/{$}"
		}
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { c.show(w, r, p) })
	}
	mux.HandleFunc("GET /search", c.search)
	mux.HandleFunc("GET /change", c.ask)
	mux.HandleFunc("POST /change", c.change)
	mux.HandleFunc("GET /style.css", file("style.css", "text/css; charset=utf-8"))
	mux.HandleFunc("GET /live.js", file("live.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /page.js", file("page.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /icon.svg", file("icon.svg", "image/svg+xml"))
	mux.HandleFunc("GET /favicon.ico", file("icon.svg", "image/svg+xml"))
	return secure(timely(c.gate.guard(http.MaxBytesHandler(mux, mostForm))))
}

// file answers with a file of web.
func file(name, contentType string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		text, err := web.ReadFile("web/" + name)
		if err != nil {
			panic(err) // the file is embedded
		}
		w.Header().Set("Content-Type", contentType)
		w.Write(text) //nolint:errcheck // the client may be gone
	}
}

// secure sets the security headers of every answer.
func secure(next http.Handler) http.Handler {
	const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
		"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// writeTimeout is how long a client may take to read an answer.
const writeTimeout = 30 * time.Second

// timely bounds the time of every answer. Answers that take longer set a deadline of their own.
func timely(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(searchTimeout + writeTimeout))
		next.ServeHTTP(w, r)
	})
}
