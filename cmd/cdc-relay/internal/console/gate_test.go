package console

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

const someToken = "0123456789abcdef"

func gateOf(t *testing.T, access Access) (*gate, *bytes.Buffer) {
	t.Helper()
	access.Listen = cmp.Or(access.Listen, "127.0.0.1:9465")
	var log bytes.Buffer
	c, err := New(Config{Access: access, Log: event.Limited(slog.New(slog.NewJSONHandler(&log, nil)))})
	must(t, err)
	return c.gate, &log
}

type gateTest struct {
	what   string
	host   string // "": localhost
	from   string // "": 10.0.0.7
	method string // "": GET
	path   string // "": /
	header [][2]string
	status int
	user   string
}

func (test gateTest) run(t *testing.T, g *gate) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), test.method, cmp.Or(test.path, "/"), http.NoBody)
	r.Host, r.RemoteAddr = cmp.Or(test.host, "localhost"), cmp.Or(test.from, "10.0.0.7")+":1234"
	here := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 9465}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, here))
	for _, h := range test.header {
		r.Header[h[0]] = append(r.Header[h[0]], h[1])
	}
	name := ""
	answer := httptest.NewRecorder()
	admitted := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		name, _ = r.Context().Value(user{}).(string)
	})
	g.guard(admitted).ServeHTTP(answer, r)
	if answer.Code != test.status || name != test.user {
		t.Errorf("%s: status %d and user %q, want %d and %q: %s",
			test.what, answer.Code, name, test.status, test.user, answer.Body)
	}
}

func basic(name, password string) [2]string {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.SetBasicAuth(name, password)
	return [2]string{"Authorization", r.Header.Get("Authorization")}
}

// A proxy may add its header to that of the client, or forward another spelling, which is another header.
func TestConsoleTrustsOnlyOneNameFromTheProxy(t *testing.T) {
	g, _ := gateOf(t, Access{LoginHeader: "X-Forwarded-User", Token: someToken})
	const header, underscore = "X-Forwarded-User", "X_forwarded_user"
	as := func(names ...string) (headers [][2]string) {
		for _, name := range names {
			headers = append(headers, [2]string{header, name})
		}
		return headers
	}
	for _, test := range []gateTest{
		{what: "one name", header: as("ada"), status: 200, user: "ada"},
		{what: "letters beyond ASCII", header: as("Zoë Müller"), status: 200, user: "Zoë Müller"},
		{what: "no name", status: 401},
		{what: "an empty name", header: as(""), status: 401},
		{what: "two values", header: as("mallory", "ada"), status: 400},
		{what: "the same value twice", header: as("ada", "ada"), status: 400},
		{what: "an empty value and another", header: as("", "ada"), status: 400},
		{what: "values joined by a comma", header: as("mallory, ada"), status: 400},
		{what: "an underscore beside it", header: append(as("ada"), [2]string{underscore, "mallory"}), status: 200, user: "ada"},
		{what: "only with an underscore", header: [][2]string{{underscore, "mallory"}}, status: 401},
		{what: "a tab", header: as("a\tda"), status: 400},
		{what: "a line break", header: as("ada\nx"), status: 400},
		{what: "an escape", header: as("ada\x1b[2K"), status: 400},
		{what: "a C1 control", header: as("ada\u009b2K"), status: 400},
		{what: "a bidirectional control", header: as("ada\u202e"), status: 400},
		{what: "invalid UTF-8", header: as("ad\xff"), status: 400},
		{what: "a long name", header: as(strings.Repeat("a", 257)), status: 400},
	} {
		test.header = append(test.header, basic("x", someToken))
		test.run(t, g)
	}
}

// A proxy proves itself by the token.
func TestConsoleChecksTheTokenBeforeTheName(t *testing.T) {
	both, _ := gateOf(t, Access{LoginHeader: "X-User", Token: someToken})
	alone, _ := gateOf(t, Access{Token: someToken})
	ada, wrong := [2]string{"X-User", "ada"}, basic("x", "no")
	for _, test := range []gateTest{
		{what: "token and name", header: [][2]string{ada, basic("x", someToken)}, status: 200, user: "ada"},
		{what: "no token", header: [][2]string{ada}, status: 401},
		{what: "a wrong token", header: [][2]string{ada, basic("x", someToken+"0")}, status: 401},
		{what: "the beginning of the token", header: [][2]string{ada, basic("x", someToken[:15])}, status: 401},
		{what: "the token as the name", header: [][2]string{ada, basic(someToken, "")}, status: 401},
		{what: "a wrong and a right token", header: [][2]string{ada, wrong, basic("x", someToken)}, status: 401},
		{what: "a right and a wrong token", header: [][2]string{ada, basic("x", someToken), wrong}, status: 401},
		{what: "the token in the address", path: "/?token=" + someToken, header: [][2]string{ada}, status: 401},
		{what: "no name", header: [][2]string{basic("x", someToken)}, status: 401},
	} {
		test.run(t, both)
	}
	for _, test := range []gateTest{
		{what: "the token", header: [][2]string{basic("ada", someToken)}, status: 200, user: "ada"},
		{what: "the token alone", header: [][2]string{basic("", someToken)}, status: 200, user: "unnamed user"},
		{what: "no login", status: 401},
		{what: "another scheme", header: [][2]string{{"Authorization", "Bearer " + someToken}}, status: 401},
		{what: "an unprintable name", header: [][2]string{basic("a\x1bda", someToken)}, status: 401},
	} {
		test.run(t, alone)
	}
}

// Without the check, a page of evil.example whose name leads to the console can read it.
func TestConsoleAnswersOnlyToItsHostNames(t *testing.T) {
	others, err := hosts.Parse("Console.example.com, 192.0.2.1")
	must(t, err)
	open, _ := gateOf(t, Access{})
	withLogin, _ := gateOf(t, Access{Listen: "10.0.0.5:9465", Token: someToken, Hosts: others})
	named, _ := gateOf(t, Access{Listen: "box.internal:9465", Token: someToken, LoginHeader: "X-User"})
	for host, want := range map[string][3]bool{
		"localhost":                {true, true, true},
		"LocalHost:9465":           {true, true, true},
		"localhost.":               {true, true, true},
		"127.0.0.1:1":              {true, true, true},
		"[::1]:9465":               {true, true, true},
		"[::1]":                    {true, true, true},
		"10.0.0.5:9465":            {true, true, true},
		"box.internal":             {false, false, true},
		"console.example.com":      {false, true, false},
		"console.example.com.:443": {false, true, false},
		"192.0.2.1:80":             {false, true, false},
		"evil.example":             {},
		"localhost.evil.example":   {},
		"127.0.0.1.evil.example":   {},
		"10.0.0.9":                 {},
		"0.0.0.0:9465":             {},
		" ":                        {},
		"xlocalhost":               {},
		"a.console.example.com":    {},
		"::1":                      {},
		"localhost@evil.example":   {},
		"[::2]:80":                 {},
		"2130706433":               {},
	} {
		for i, g := range []*gate{open, withLogin, named} {
			test := gateTest{what: host, host: host, status: 421}
			test.header = [][2]string{basic("x", someToken), {"X-User", "x"}}
			if want[i] {
				test.status, test.user = 200, []string{"local user", "x", "x"}[i]
			}
			test.run(t, g)
		}
	}
}

func TestConsoleRejectsRequestsOfOtherSites(t *testing.T) {
	g, _ := gateOf(t, Access{})
	const page, updates, form = "GET /", "GET /waiting", "POST /change"
	for _, test := range []struct {
		what, request string
		fetch         string // Sec-Fetch-Site, -Mode and -Dest
		origin        string
		status        int
	}{
		{"the console itself", page, "same-origin", "", 200},
		{"an address that a person types", page, "none navigate", "", 200},
		{"a link of another site", page, "cross-site navigate document", "", 200},
		{"no browser", form, "", "", 200},
		{"the console behind a proxy with another name", form, "same-origin", "https://console.example.com", 200},
		{"an old browser", form, "", "http://localhost", 200},
		{"updates for another site", updates, "cross-site cors", "", 403},
		{"updates for another port", updates, "same-site cors", "", 403},
		{"updates for another site with an old browser", updates, "", "http://evil.example", 403},
		{"updates for a file", updates, "", "null", 403},
		{"a link to a change", "GET /change?do=purge", "cross-site navigate document", "", 403},
		{"a frame", page, "cross-site navigate iframe", "", 403},
		{"an image", page, "cross-site no-cors image", "", 403},
		{"a form of another site", form, "cross-site navigate document", "", 403},
		{"a form of another port", form, "same-site navigate document", "", 403},
		{"a form with an old browser", form, "", "http://localhost:8080", 403},
	} {
		one := gateTest{what: test.what, status: test.status}
		one.method, one.path, _ = strings.Cut(test.request, " ")
		if test.status == http.StatusOK {
			one.user = "local user"
		}
		for i, word := range strings.Fields(test.fetch) {
			one.header = append(one.header, [2]string{"Sec-Fetch-" + []string{"Site", "Mode", "Dest"}[i], word})
		}
		if test.origin != "" {
			one.header = append(one.header, [2]string{"Origin", test.origin})
		}
		one.run(t, g)
	}
}

func TestFailedLoginsAreLoggedWithoutSecrets(t *testing.T) {
	g, log := gateOf(t, Access{Token: someToken})
	gateTest{what: "no login", status: 401}.run(t, g)
	gateTest{what: "another site", header: [][2]string{{"Origin", "http://evil.example"}}, status: 403}.run(t, g)
	if log.Len() > 0 {
		t.Errorf("a request without a login is logged: %s", log)
	}
	const times = 500
	attacker := g.guesses.of(netip.MustParseAddr("192.0.2.9"))
	attacker.SetLimit(0) // the test does not depend on the time
	guess, right := basic("s3cr3t-name\x1b[2K", "s3cr3t-token"), basic("ada", someToken)
	for i := range times {
		status := http.StatusUnauthorized
		if i >= attacker.Burst() {
			status = http.StatusTooManyRequests
		}
		gateTest{what: "a wrong token", from: "192.0.2.9", header: [][2]string{guess}, status: status}.run(t, g)
	}
	gateTest{what: "a right guess", from: "192.0.2.9", header: [][2]string{right}, status: 429}.run(t, g)
	gateTest{what: "no login", from: "192.0.2.9", status: 401}.run(t, g)
	for i := range 256 {
		other := fmt.Sprintf("192.0.3.%d", i)
		if g.guesses.of(netip.MustParseAddr(other)) != attacker {
			gateTest{what: "another address", from: other, header: [][2]string{right}, status: 200, user: "ada"}.run(t, g)
		}
	}
	if g.guesses.of(netip.MustParseAddr("2001:db8::1")) != g.guesses.of(netip.MustParseAddr("2001:db8::2:0:0:1")) {
		t.Error("each address of a network has its own guesses")
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) < 2 || len(lines) > 20 {
		t.Errorf("%d failed logins have %d lines", times, len(lines))
	}
	for _, part := range []string{
		`"event":"console_login_failed"`, `"reason":"wrong token"`, `"from":"192.0.2.9:1234"`,
	} {
		if !strings.Contains(lines[0], part) {
			t.Errorf("no %s in %s", part, lines[0])
		}
	}
	if strings.Contains(log.String(), "s3cr3t") {
		t.Errorf("a secret is logged: %s", lines[0])
	}
}
