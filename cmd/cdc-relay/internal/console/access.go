package console

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// Access says who may open the console, and how it learns their names. Without a Token, everybody who
// reaches it is the "local user".
type Access struct {
	// Listen is the address HOST:PORT as the user wrote it. Browsers may open the console by this host.
	Listen string
	// Hosts are other names and addresses by which browsers open the console, as hosts.Parse returns them.
	Hosts []string
	// Token is the password of every user; "": there is none.
	Token string
	// LoginHeader is the header in which a proxy, which sends the token, names the user; "": there is none.
	LoginHeader string
}

// validate fails if anybody could choose a user name, or if the console is open to other machines.
func (a Access) validate() error {
	switch {
	case a.Token != "":
	case a.LoginHeader != "":
		return problem.New("", "--login-header %s: every client could choose the user; it also needs --token-file "+
			"with the token that the proxy sends", a.LoginHeader)
	case !IsLoopback(a.Listen):
		return problem.New("", "--console-listen %s: beyond loopback it needs --token-file", a.Listen)
	}
	return nil
}

// ReadToken reads the token from a file, without the space around it. It rejects a token that is short enough to guess.
// The error names the flag, and may have a hint.
func ReadToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	const least = 16
	token := strings.TrimSpace(string(text))
	if len(token) < least {
		return "", problem.New("openssl rand -hex 32 > "+file,
			"--token-file %s: want a token of at least %d characters", file, least)
	}
	return token, nil
}

// CheckHeaderName rejects what --login-header cannot name. The HTTP server removes Host, and the others have a meaning.
func CheckHeaderName(text string) error {
	const others = "!#$%&'*+-.^_`|~"
	invalid := func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		return !letter && !('0' <= r && r <= '9') && !strings.ContainsRune(others, r)
	}
	taken := []string{"host", "authorization", "cookie"}
	if text == "" || strings.ContainsFunc(text, invalid) || slices.Contains(taken, strings.ToLower(text)) {
		return fmt.Errorf("%q: want the name of a header, such as X-Forwarded-User", text)
	}
	return nil
}

// IsLoopback reports whether only this machine can reach an address HOST:PORT.
func IsLoopback(hostPort string) bool {
	host := hosts.Of(hostPort)
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
