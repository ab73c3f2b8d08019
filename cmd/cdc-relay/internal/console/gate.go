package console

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

// gate decides which requests the console answers, and for which user.
type gate struct {
	Access
	// hash is that of the token, so that a comparison tells nothing about its length; nil: there is no token.
	hash    *[sha256.Size]byte
	guesses guesses
	log     *slog.Logger
}

func newGate(access Access, log *slog.Logger) *gate {
	g := &gate{Access: access, guesses: newGuesses(), log: log}
	if access.Token != "" {
		hash := sha256.Sum256([]byte(access.Token))
		g.hash = &hash
	}
	return g
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
		if refused.failed != "" { // without the user name: people type passwords into the wrong field
			g.log.Warn("console login failed: request rejected", "event", event.ConsoleLoginFailed,
				"reason", refused.failed, "from", r.RemoteAddr)
		}
		if refused.status == http.StatusUnauthorized && g.hash != nil {
			w.Header().Set("WWW-Authenticate", `Basic realm="cdc-relay console", charset="UTF-8"`)
		}
		http.Error(w, refused.text, refused.status)
	})
}

// admit returns the user of a request, or why it is rejected. It comes before anything else is read.
func (g *gate) admit(r *http.Request) (name string, refused *refusal) {
	switch {
	case !hosts.Known{Listen: g.Listen, Others: g.Hosts}.Has(r):
		const text = "this console does not answer to this host name: open http://localhost:PORT/ " +
			"or the address of --console-listen, or add the name to --allowed-hosts (CDC_RELAY_ALLOWED_HOSTS)"
		return "", &refusal{status: http.StatusMisdirectedRequest, text: text}
	case foreign(r):
		return "", &refusal{status: http.StatusForbidden, text: "this request comes from a page of another site"}
	case g.hash == nil:
		return "local user", nil
	}
	login, password, sent := r.BasicAuth()
	hash, guesses := sha256.Sum256([]byte(password)), g.guesses.of(peer(r))
	switch {
	case len(r.Header.Values("Authorization")) == 0 && g.LoginHeader == "":
		return "", &refusal{status: http.StatusUnauthorized, text: "log in"}
	case !sent || len(r.Header.Values("Authorization")) != 1:
		return "", &refusal{http.StatusUnauthorized, "log in", "no token"}
	case guesses.Tokens() < 1: // before the comparison, so that a right guess is not found
		const text = "too many wrong tokens from this address: try again in a few seconds"
		return "", &refusal{http.StatusTooManyRequests, text, "too many wrong tokens"}
	case subtle.ConstantTimeCompare(hash[:], g.hash[:]) != 1:
		guesses.Allow()
		return "", &refusal{http.StatusUnauthorized, "log in", "wrong token"}
	case g.LoginHeader != "":
		return g.named(r)
	case login == "":
		return "unnamed user", nil
	case !isUserName(login):
		const text = "log in with a shorter or printable user name"
		return "", &refusal{http.StatusUnauthorized, text, "invalid user name"}
	}
	return login, nil
}

// named returns the user that the proxy names. It accepts exactly one value: a proxy that adds its own header to that
// of the client would let the client choose.
func (g *gate) named(r *http.Request) (string, *refusal) {
	values := r.Header.Values(g.LoginHeader)
	switch {
	case strings.TrimSpace(strings.Join(values, "")) == "":
		return "", &refusal{http.StatusUnauthorized, "log in at the proxy", "no user in " + g.LoginHeader}
	case len(values) > 1:
		several := "several values of " + g.LoginHeader
		return "", &refusal{http.StatusBadRequest, several + ": the proxy must replace the client's", several}
	case strings.Contains(values[0], ",") || !isUserName(values[0]):
		invalid := "invalid user name in " + g.LoginHeader
		return "", &refusal{http.StatusBadRequest, invalid, invalid}
	}
	return values[0], nil
}

// isUserName reports whether a name can go into the log and the pages.
func isUserName(name string) bool {
	const longest = 256
	return name != "" && len(name) <= longest && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// peer returns the address of the client or proxy; the zero address: unknown.
func peer(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap().WithZone("")
}

// guesses bounds how many wrong tokens are compared: ten of an address at once, then one a second. Addresses share a
// fixed number of limits, at random, so that the memory is bounded and hardly anybody can lock out others.
type guesses struct {
	seed   maphash.Seed
	limits []*rate.Limiter
}

func newGuesses() guesses {
	g := guesses{maphash.MakeSeed(), make([]*rate.Limiter, 256)}
	for i := range g.limits {
		g.limits[i] = rate.NewLimiter(1, 10)
	}
	return g
}

// of returns the limit of an address. A client of IPv6 has a network of addresses.
func (g guesses) of(address netip.Addr) *rate.Limiter {
	network, err := address.Prefix(min(address.BitLen(), 64))
	if err != nil {
		network = netip.Prefix{}
	}
	return g.limits[maphash.Comparable(g.seed, network)%uint64(len(g.limits))]
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
	return !opens || r.Method != http.MethodGet || r.URL.Path == "/change"
}
