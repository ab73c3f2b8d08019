package console

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/hosts"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// Access says who may open the console, and how it learns their names. Without Token and LoginHeader, everybody who
// reaches it is the "local user".
type Access struct {
	// Listen is the address HOST:PORT as the user wrote it. Browsers may open the console by this host.
	Listen string
	// Hosts are other names and addresses by which browsers open the console, as hosts.Parse returns them.
	Hosts []string
	// Token is the password of every user; "": there is none.
	Token string
	// LoginHeader is the header in which a proxy before the console names the user; "": there is none.
	LoginHeader string
	// Proxies may set LoginHeader; none: every client that sends the token.
	Proxies []netip.Prefix
}

// validate fails if anybody could choose a user name, or if the console is open to other machines.
func (a Access) validate() error {
	const hint = "cdc-relay console --login-header %s --trusted-proxies 127.0.0.1  # the address of your proxy"
	switch {
	case !IsLoopback(a.Listen) && a.open():
		return problem.New("", "--listen %s: beyond loopback it needs --token-file or --login-header", a.Listen)
	case a.LoginHeader != "" && a.Token == "" && len(a.Proxies) == 0:
		return problem.New(fmt.Sprintf(hint, a.LoginHeader), "--login-header %s: every client could choose the user; "+
			"it also needs --trusted-proxies or --token-file", a.LoginHeader)
	case a.LoginHeader == "" && len(a.Proxies) > 0:
		return problem.New("", "--trusted-proxies: it also needs --login-header")
	}
	return nil
}

// open reports whether the console needs no login.
func (a Access) open() bool { return a.Token == "" && a.LoginHeader == "" }

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

// ParseProxies parses the addresses of --trusted-proxies.
func ParseProxies(text string) (proxies []netip.Prefix, err error) {
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

// IsLoopback reports whether only this machine can reach an address HOST:PORT.
func IsLoopback(hostPort string) bool {
	host := hosts.Of(hostPort)
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
