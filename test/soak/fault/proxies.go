package fault

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// proxied starts a proxy for each host of an address, and returns the address of the proxies.
func proxied(address, defaultPort string, sort services.Sorter) ([]*services.Proxy, string, error) {
	target, err := url.Parse(address)
	if err != nil || target.Host == "" {
		return nil, "", errors.New("the address of a server is not a URL with a host") // it may contain a password
	}
	var proxies []*services.Proxy
	var hosts []string
	for host := range strings.SplitSeq(target.Host, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
		}
		proxy, err := services.StartProxy(host, sort)
		if err != nil {
			return proxies, "", fmt.Errorf("start a proxy: %w", err)
		}
		proxies, hosts = append(proxies, proxy), append(hosts, proxy.Addr())
	}
	target.Host = strings.Join(hosts, ",")
	return proxies, target.String(), nil
}
