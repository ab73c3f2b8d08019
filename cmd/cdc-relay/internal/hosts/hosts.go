// Package hosts decides by which names a server may be asked. In a DNS rebinding attack, a page of another site reaches
// a server by a name of that site.
package hosts

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
)

// Known are the names of one server. Localhost, loopback addresses and the address that the client has reached are
// always known.
type Known struct {
	// Listen is the address HOST:PORT as the user wrote it.
	Listen string
	// Others are other names and addresses, as Parse returns them.
	Others []string
}

// Parse parses the names of --allowed-hosts.
func Parse(text string) (hosts []string, err error) {
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

// Of returns the host of "host", "host:port" or "[address]:port".
func Of(text string) string { return (&url.URL{Host: text}).Hostname() }

// Has reports whether the request asks for a known name.
func (k Known) Has(r *http.Request) bool {
	host := asked(r)
	address, err := netip.ParseAddr(host)
	if err != nil {
		listen := strings.ToLower(Of(k.Listen))
		return host != "" && (host == "localhost" || host == listen || slices.Contains(k.Others, host))
	}
	if address = address.Unmap(); address.IsLoopback() || slices.Contains(k.Others, address.String()) {
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

func asked(r *http.Request) string { return strings.TrimSuffix(strings.ToLower(Of(r.Host)), ".") }

// Local reports whether the request asks by what no site has as its name: an address, a word, a name of Kubernetes or
// of a private network, or the name of this machine. Probes and Prometheus ask so.
func Local(r *http.Request) bool {
	host := asked(r)
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	labels := strings.Split(host, ".")
	last := labels[len(labels)-1]
	self, err := os.Hostname()
	private := []string{"svc", "local", "internal", "localhost"}
	return host != "" && (len(labels) == 1 || slices.Contains(private, last) ||
		err == nil && strings.EqualFold(host, self))
}
