package amqpdial

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/secret"
)

// parameters are those that the library reads: it ignores all others.
const parameters = "auth_mechanism, cacertfile, certfile, channel_max, connection_timeout, heartbeat, keyfile, " +
	"server_name_indication"

// mechanisms are those of the library for auth_mechanism.
const mechanisms = "plain, amqplain, external"

// Parse returns the nodes of an address: one URL, amqp:// or amqps://, or several with a comma, a space or a line end
// between them. A URL may name several hosts, as in amqp://user:password@a:5672,b:5672/vhost. All nodes have the same
// virtual host. Errors quote nothing of the text but names of parameters: what looks like a host or a port may belong
// to a password that was not percent-encoded.
func Parse(text string) ([]Node, error) {
	var nodes []Node
	for _, word := range strings.Fields(text) {
		for _, address := range splitURLs(word) {
			some, err := parseURL(address)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, some...)
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New(wantURL)
	}
	differs := func(n Node) bool { return n.URI.Vhost != nodes[0].URI.Vhost }
	if slices.ContainsFunc(nodes, differs) {
		return nil, errors.New("the URLs have different virtual hosts: want the nodes of one cluster")
	}
	return nodes, nil
}

// splitURLs splits at commas before a URL. Other commas stand between hosts, or in a password.
func splitURLs(text string) []string {
	var urls []string
	for part := range strings.SplitSeq(text, ",") {
		if len(urls) == 0 || strings.HasPrefix(part, "amqp://") || strings.HasPrefix(part, "amqps://") {
			urls = append(urls, part)
		} else {
			urls[len(urls)-1] += "," + part
		}
	}
	return urls
}

// parseURL returns one node for each host.
func parseURL(text string) ([]Node, error) {
	scheme, rest, found := strings.Cut(text, "://")
	if !found || (scheme != "amqp" && scheme != "amqps") {
		return nil, otherForm(text)
	}
	if err := secret.CheckPrintable(text); err != nil {
		return nil, err
	}
	wrong := errors.New("not a URL of the form " + scheme + "://user:password@host:5672/vhost; " + secret.Encode)
	if secret.AtAfterHost(text) {
		return nil, wrong
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	at := strings.LastIndex(rest[:end], "@") + 1
	login, hosts, path := rest[:at], rest[at:end], rest[end:]
	var nodes []Node
	for host := range strings.SplitSeq(hosts, ",") {
		one := scheme + "://" + login + host + path
		uri, err := amqp091.ParseURI(one)
		if err != nil || !isHost(host) {
			return nil, wrong
		}
		nodes = append(nodes, Node{URL: one, URI: uri})
	}
	return nodes, checkParameters(text[:len(scheme)+3] + path)
}

const wantURL = "want a URL that begins with amqp:// or amqps://"

// otherForm says what another text than a URL of RabbitMQ is.
func otherForm(text string) error {
	const postgres = "; the address of Postgres goes into --database-url (CDC_RELAY_DATABASE_URL)"
	scheme := secret.Scheme(text)
	word := regexp.MustCompile(`^(host|hostaddr|port|dbname|user|password|sslmode|service)=`)
	switch lower := strings.ToLower(scheme); {
	case scheme == "" && word.MatchString(text):
		return errors.New(wantURL + postgres)
	case scheme == "":
		return errors.New(wantURL)
	case lower == "amqps://" || lower == "amqp+ssl://" || lower == "rabbitmqs://":
		return errors.New(wantURL + ": write amqps:// in place of " + scheme)
	case strings.Contains(lower, "amqp") || strings.Contains(lower, "rabbitmq"):
		return errors.New(wantURL + ": write amqp:// in place of " + scheme)
	case strings.HasPrefix(lower, "p"):
		return errors.New(wantURL + postgres)
	case strings.HasPrefix(lower, "http"):
		return errors.New(wantURL + ": as a rule the port is 5672 or 5671; " +
			"the HTTP API goes into --management-url of check")
	}
	return errors.New(wantURL + ": cdc-relay publishes with AMQP, and not with " + scheme)
}

// isHost accepts "", a name, and an IPv6 address in brackets, with or without a port.
func isHost(text string) bool {
	if !strings.Contains(text, ":") || strings.HasSuffix(text, "]") {
		return true
	}
	_, _, err := net.SplitHostPort(text)
	return err == nil
}

func checkParameters(text string) error {
	address, err := url.Parse(text)
	if err != nil {
		return errors.New("not a URL") // parsed before
	}
	query := address.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !isOneOf(parameters, name) {
			return fmt.Errorf("parameter %s is unknown; known are %s", name, parameters)
		}
		if address.Scheme != "amqps" && isOneOf("cacertfile, certfile, keyfile", name) {
			return fmt.Errorf("parameter %s needs a URL that begins with amqps://", name)
		}
	}
	for _, mechanism := range query["auth_mechanism"] {
		if !isOneOf(mechanisms, strings.ToLower(mechanism)) {
			return fmt.Errorf("wrong value for parameter auth_mechanism: want one of %s", mechanisms)
		}
	}
	return nil
}

func isOneOf(list, word string) bool { return slices.Contains(strings.Split(list, ", "), word) }
