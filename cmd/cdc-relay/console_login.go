package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/failure"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

// gate decides which requests the console answers, and for which user.
type gate struct {
	consoling
	// token is the hash of the token, so that a comparison tells nothing about its length; nil: there is none.
	token    *[sha256.Size]byte
	failures failures
}

// newGate reads the token. It fails if anybody could choose a user name, or if the console is open to other machines.
func newGate(c consoling, log *slog.Logger) (*gate, error) {
	g := &gate{consoling: c, failures: failures{log: log, pace: rate.NewLimiter(rate.Every(5*time.Second), 10)}}
	token, err := consoleToken(c.tokenFile)
	if err != nil {
		return nil, err
	}
	if token != "" {
		hash := sha256.Sum256([]byte(token))
		g.token = &hash
	}
	switch {
	case !isLoopback(c.listen) && g.open():
		return nil, usagef("--listen %s: beyond loopback it needs --token-file or --login-header", c.listen)
	case c.loginHeader != "" && g.token == nil && len(c.proxies) == 0:
		return nil, failure.WithHint(
			usagef("--login-header %s: every client could choose the user; it also needs --trusted-proxies or --token-file", c.loginHeader),
			"cdc-relay console --login-header "+c.loginHeader+" --trusted-proxies 127.0.0.1  # the address of your proxy",
		)
	case c.loginHeader == "" && len(c.proxies) > 0:
		return nil, usagef("--trusted-proxies: it also needs --login-header")
	}
	return g, nil
}

// open reports whether the console needs no login.
func (g *gate) open() bool { return g.token == nil && g.loginHeader == "" }

// consoleToken reads the token from the file; "" without a file.
func consoleToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("--token-file: %s", err)
	}
	const least = 16
	token := strings.TrimSpace(string(text))
	if len(token) < least {
		return "", failure.WithHint(usagef("--token-file %s: want a token of at least %d characters", file, least), "openssl rand -hex 32 > "+file)
	}
	return token, nil
}

// user is the context key of a request's user.
type user struct{}

// refusal is the answer to a request that the gate rejects.
type refusal struct {
	status int
	text   string
	// failed says why a login failed, for the log; "": nobody tried to log in.
	failed string
}

// guard passes the requests that may be answered.
func (g *gate) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, refused := g.admit(r)
		if refused == nil {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), user{}, name)))
			return
		}
		if refused.failed != "" {
			g.failures.note(r, refused.failed)
		}
		if refused.status == http.StatusUnauthorized && g.token != nil {
			w.Header().Set("WWW-Authenticate", `Basic realm="cdc-relay console", charset="UTF-8"`)
		}
		http.Error(w, refused.text, refused.status)
	})
}

// admit returns the user of a request, or why it is rejected. It comes before anything else is read.
func (g *gate) admit(r *http.Request) (name string, refused *refusal) {
	switch {
	case !g.knows(r):
		return "", &refusal{status: http.StatusMisdirectedRequest, text: "this console does not answer to this host name: " +
			"open http://localhost:PORT/ or the address of --listen, or add the name to --allowed-hosts (CDC_RELAY_ALLOWED_HOSTS)"}
	case foreign(r):
		return "", &refusal{status: http.StatusForbidden, text: "this request comes from a page of another site"}
	case g.open():
		return "local user", nil
	}
	if len(g.proxies) > 0 && !g.trusts(r) {
		return "", &refusal{http.StatusForbidden, "log in at the proxy: this address is not in --trusted-proxies", "not from a trusted proxy"}
	}
	if g.token != nil {
		login, password, sent := r.BasicAuth()
		hash := sha256.Sum256([]byte(password))
		switch {
		case len(r.Header.Values("Authorization")) == 0 && g.loginHeader == "":
			return "", &refusal{status: http.StatusUnauthorized, text: "log in"}
		case !sent || len(r.Header.Values("Authorization")) != 1:
			return "", &refusal{http.StatusUnauthorized, "log in", "no token"}
		case subtle.ConstantTimeCompare(hash[:], g.token[:]) != 1:
			return "", &refusal{http.StatusUnauthorized, "log in", "wrong token"}
		case g.loginHeader == "" && login == "":
			return "unnamed user", nil
		case g.loginHeader == "" && !isUserName(login):
			return "", &refusal{http.StatusUnauthorized, "log in with a shorter or printable user name", "invalid user name"}
		case g.loginHeader == "":
			return login, nil
		}
	}
	return g.named(r)
}

// named returns the user that the proxy names. It accepts exactly one value: a proxy that adds its own header to that of
// the client would let the client choose.
func (g *gate) named(r *http.Request) (string, *refusal) {
	asDashes := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }
	var values []string
	spellings := 0
	for name, sent := range r.Header {
		if asDashes(name) == asDashes(g.loginHeader) {
			values = append(values, sent...)
			spellings++
		}
	}
	own := r.Header.Values(g.loginHeader)
	switch {
	case len(values) == 0:
		return "", &refusal{http.StatusUnauthorized, "log in at the proxy", "no user in " + g.loginHeader}
	case len(values) > 1 || spellings > 1 || len(own) != 1:
		return "", &refusal{http.StatusBadRequest, "several values of " + g.loginHeader + ": the proxy must replace the client's", "several values of " + g.loginHeader}
	case strings.TrimSpace(own[0]) == "":
		return "", &refusal{http.StatusUnauthorized, "log in at the proxy", "no user in " + g.loginHeader}
	case strings.Contains(own[0], ",") || !isUserName(own[0]):
		return "", &refusal{http.StatusBadRequest, "invalid user name in " + g.loginHeader, "invalid user name in " + g.loginHeader}
	}
	return own[0], nil
}

// isUserName reports whether a name can go into the log and the pages.
func isUserName(name string) bool {
	const longest = 256
	return name != "" && len(name) <= longest && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

func (g *gate) trusts(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && slices.ContainsFunc(g.proxies, func(p netip.Prefix) bool { return p.Contains(peer.Addr().Unmap().WithZone("")) })
}

// knows reports whether the request names a host of this console. In a DNS rebinding attack, another name leads here.
func (g *gate) knows(r *http.Request) bool {
	host := strings.TrimSuffix(strings.ToLower(hostOf(r.Host)), ".")
	address, err := netip.ParseAddr(host)
	if err != nil {
		listen := strings.ToLower(hostOf(g.listen))
		return host != "" && (host == "localhost" || host == listen || slices.Contains(g.hosts, host))
	}
	if address = address.Unmap(); address.IsLoopback() || slices.Contains(g.hosts, address.String()) {
		return true
	}
	// The address of this machine that the client has reached.
	here, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if here == nil {
		return false
	}
	local, err := netip.ParseAddrPort(here.String())
	return err == nil && local.Addr().Unmap().WithZone("") == address
}

// hostOf returns the host of "host", "host:port" or "[address]:port"; "" if it is none of these.
func hostOf(text string) string {
	if host, _, err := net.SplitHostPort(text); err == nil {
		return host
	}
	if inner, found := strings.CutPrefix(text, "["); found {
		text, found = strings.CutSuffix(inner, "]")
		if !found {
			return ""
		}
		return text
	}
	if strings.Contains(text, ":") {
		return ""
	}
	return text
}

func isLoopback(hostPort string) bool {
	host := hostOf(hostPort)
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// foreign reports whether a page of another site sends the request. Such a page may only link to a page of the console.
// Browsers set these headers; a page cannot.
func foreign(r *http.Request) bool {
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "same-origin", "none":
		return false
	case "":
		_, from, _ := strings.Cut(r.Header.Get("Origin"), "://")
		return r.Header.Get("Origin") != "" && !strings.EqualFold(from, r.Host)
	}
	opens := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return !opens || r.Method != http.MethodGet || r.URL.Path == "/change" || r.URL.Path == "/events"
}

// secure sets the security headers of every answer.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// failures logs failed logins: the first at once, many of them at a bounded rate. It logs no user name, because people
// type passwords into the wrong field.
type failures struct {
	log  *slog.Logger
	pace *rate.Limiter
	mu   struct {
		sync.Mutex
		unlogged int
	}
}

func (f *failures) note(r *http.Request, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.pace.Allow() {
		f.mu.unlogged++
		return
	}
	f.log.Warn("console login failed: request rejected", "event", event.ConsoleLoginFailed, "reason", reason, "from", r.RemoteAddr, "not_logged", f.mu.unlogged)
	f.mu.unlogged = 0
}

func notEmpty(text string) error {
	if strings.TrimSpace(text) == "" {
		return errors.New("is empty")
	}
	return nil
}

// checkHeaderName accepts headers that a server can read: it removes Host.
func checkHeaderName(text string) error {
	const others = "!#$%&'*+-.^_`|~"
	invalid := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(others, r))
	}
	if text == "" || strings.ContainsFunc(text, invalid) || slices.Contains([]string{"host", "authorization", "cookie"}, strings.ToLower(text)) {
		return fmt.Errorf("%q: want the name of a header, such as X-Forwarded-User", text)
	}
	return nil
}

// parseHosts parses the names of --allowed-hosts.
func parseHosts(text string) (hosts []string, err error) {
	for host := range strings.SplitSeq(text, ",") {
		host = strings.ToLower(strings.TrimSpace(host))
		if address, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
			hosts = append(hosts, address.Unmap().String())
			continue
		}
		if host = strings.TrimSuffix(host, "."); host == "" || strings.ContainsAny(host, ":/*@ ") {
			return nil, fmt.Errorf("%q: want host names without scheme and port, such as console.example.com", text)
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

// parseProxies parses the addresses of --trusted-proxies.
func parseProxies(text string) (proxies []netip.Prefix, err error) {
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		address, err := netip.ParseAddr(word)
		if err == nil {
			address = address.Unmap().WithZone("")
			proxies = append(proxies, netip.PrefixFrom(address, address.BitLen()))
			continue
		}
		network, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, fmt.Errorf("%q: want addresses or networks, such as 10.0.0.7,10.1.0.0/24", text)
		}
		proxies = append(proxies, network.Masked())
	}
	return proxies, nil
}
