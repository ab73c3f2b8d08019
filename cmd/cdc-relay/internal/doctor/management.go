package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// managementFacts are what only RabbitMQ's HTTP API reports. The tag "management" is enough for all of it.
type managementFacts struct {
	url string // without user and password
	err error  // nil: it answered

	alarms    string // the result of its health check; "": no alarm
	exchanges map[string]exchangeFacts
	// bindings by source, of all exchanges that the destinations can lead to, up to mostExchanges.
	bindings map[string][]binding
	unasked  bool // there are more exchanges
	queues   map[string]queueFacts
	down     []string // queues on nodes that do not run; RabbitMQ reports neither their bindings nor their settings
	policies []policy
}

type exchangeFacts struct {
	Name, Type string
	Arguments  map[string]any
}

type binding struct {
	Destination     string
	DestinationType string `json:"destination_type"` // queue or exchange
	RoutingKey      string `json:"routing_key"`
}

type queueFacts struct {
	Name      string
	Type      string // classic, quorum or stream
	Arguments map[string]any
	// Ready and ReadyBytes count what waits for consumers. The API counts every few seconds, or never.
	Ready      float64 `json:"messages_ready"`
	ReadyBytes float64 `json:"message_bytes_ready"`
}

// policy sets arguments of queues or exchanges with matching names.
type policy struct {
	Name, Pattern string
	ApplyTo       string `json:"apply-to"`
	Definition    map[string]any
	Priority      int
	operator      bool
}

// Limits for the answers of the API.
const (
	mostExchanges = 100
	mostQueues    = 200
	mostAnswer    = 32 << 20 // bytes
)

// gatherManagement asks for the bindings of the destinations' exchanges. After an error it asks no more.
func (o Options) gatherManagement(ctx context.Context, node amqpdial.Node, broker *brokerFacts) (f managementFacts) {
	api, err := o.newAPI(node)
	if err != nil {
		f.err = err
		return f
	}
	defer api.client.CloseIdleConnections()
	f.url = api.base
	var list []exchangeFacts
	if f.err = api.get(ctx, api.of("exchanges"), &list); f.err != nil {
		return f
	}
	f.exchanges, f.bindings, f.queues = map[string]exchangeFacts{}, map[string][]binding{}, map[string]queueFacts{}
	for _, x := range list {
		f.exchanges[x.Name] = x
	}
	var operators []policy
	f.err = errors.Join(api.get(ctx, api.of("policies"), &f.policies),
		api.get(ctx, api.of("operator-policies"), &operators))
	for _, p := range operators {
		p.operator = true
		f.policies = append(f.policies, p)
	}
	f.askDown(ctx, api)
	f.alarms = api.health(ctx)
	f.follow(ctx, api, o.exchangesOf(broker.asked))
	for _, d := range broker.asked {
		if d.exchange == "" && broker.queues[d.routingKey] == nil {
			f.askQueue(ctx, api, d.routingKey)
		}
	}
	return f
}

// askDown asks for the queues that are down, which come first by their state.
func (f *managementFacts) askDown(ctx context.Context, api *managementAPI) {
	if f.err != nil {
		return
	}
	var page struct {
		Items []struct{ Name, State string }
	}
	f.err = api.get(ctx, api.of("queues")+"?columns=name,state&sort=state&page=1&page_size=100", &page)
	for _, q := range page.Items {
		if q.State == "down" {
			f.down = append(f.down, q.Name)
		}
	}
}

// follow asks for the bindings of exchanges, and of the exchanges that they lead to.
func (f *managementFacts) follow(ctx context.Context, api *managementAPI, names []string) {
	for len(names) > 0 && f.err == nil {
		name := names[0]
		names = names[1:]
		x, there := f.exchanges[name]
		if _, done := f.bindings[name]; done || !there {
			continue
		}
		if f.unasked = len(f.bindings) >= mostExchanges; f.unasked {
			return
		}
		var found []binding
		if f.err = api.get(ctx, api.of("exchanges", name)+"/bindings/source", &found); f.err != nil {
			return
		}
		f.bindings[name] = found
		if alternate := f.alternate(x); alternate != "" {
			names = append(names, alternate)
		}
		for _, b := range found {
			if b.DestinationType == "exchange" {
				names = append(names, b.Destination)
			} else {
				f.askQueue(ctx, api, b.Destination)
			}
		}
	}
}

func (f *managementFacts) askQueue(ctx context.Context, api *managementAPI, name string) {
	if _, done := f.queues[name]; done || f.err != nil || len(f.queues) >= mostQueues {
		return
	}
	var q queueFacts
	err := api.get(ctx, api.of("queues", name), &q)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return // deleted meanwhile
	}
	if f.err = err; err == nil {
		f.queues[name] = q
	}
}

// managementAPI only sends GET requests.
type managementAPI struct {
	base   string
	user   *url.Userinfo
	vhost  string
	client *http.Client
}

// of returns the path of a kind of objects in the virtual host, or of one.
func (a *managementAPI) of(kind string, name ...string) string {
	path := kind
	for _, part := range append([]string{a.vhost}, name...) {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// The default ports of the API, without and with TLS.
const managementPort, managementTLSPort = "15672", "15671"

// newAPI uses the URL of the setting, or the usual port of the broker's host.
func (o Options) newAPI(node amqpdial.Node) (*managementAPI, error) {
	uri := node.URI
	base := &url.URL{Scheme: "http", Host: net.JoinHostPort(uri.Host, managementPort)}
	if uri.Scheme == "amqps" {
		base = &url.URL{Scheme: "https", Host: net.JoinHostPort(uri.Host, managementTLSPort)}
	}
	if o.ManagementURL != "" {
		var err error
		if base, err = url.Parse(o.ManagementURL); err != nil {
			return nil, errors.New("the management URL cannot be read")
		}
	}
	config, err := node.TLS(nil) // the API of the same broker
	if err != nil {
		return nil, err
	}
	user := cmp.Or(base.User, url.UserPassword(uri.Username, uri.Password))
	base.User = nil
	return &managementAPI{
		base: strings.TrimRight(base.String(), "/"), user: user, vhost: uri.Vhost,
		client: &http.Client{
			Timeout:   o.timeout / 3,
			Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 1},
			// Another server must not get the password.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// statusError is an HTTP error.
type statusError struct {
	code   int
	reason string
}

func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s %s", e.code, http.StatusText(e.code), e.reason))
}

func (a *managementAPI) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/api/"+path, nil)
	if err != nil {
		return err
	}
	password, _ := a.user.Password()
	request.SetBasicAuth(a.user.Username(), password)
	response, err := a.client.Do(request)
	if err != nil {
		var long *url.Error
		if errors.As(err, &long) {
			err = long.Err // without the URL: the caller names it
		}
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body := json.NewDecoder(io.LimitReader(response.Body, mostAnswer))
	if response.StatusCode != http.StatusOK {
		var said struct{ Reason any }
		_ = body.Decode(&said) // the body may have the reason
		reason, _ := said.Reason.(string)
		return &statusError{code: response.StatusCode, reason: reason}
	}
	if err := body.Decode(into); err != nil {
		return fmt.Errorf("read the answer of %s/api/%s: %w", a.base, path, err)
	}
	return nil
}

// health returns the alarms of the health check, which fails with 503 if there is one. It returns "" if the API does
// not have this check.
func (a *managementAPI) health(ctx context.Context) string {
	var ok struct{}
	var status *statusError
	err := a.get(ctx, "health/checks/alarms", &ok)
	if errors.As(err, &status) && status.code == http.StatusServiceUnavailable {
		return cmp.Or(status.reason, "a resource alarm is in effect in the cluster")
	}
	return ""
}

// judgeManagement reports what cannot be checked without the HTTP API.
func (j *brokerJudge) judgeManagement(c chart) {
	err := j.f.management.err
	if err == nil {
		c.ok("management", "the HTTP API at %s answers", j.f.management.url)
		return
	}
	hidden := "not checked: limits of queues. RabbitMQ drops confirmed messages at a limit"
	if j.needsManagement() {
		hidden = "not checked: whether a queue takes each message, alternate exchanges, and limits of queues. " +
			"Confirmed messages can be lost there"
	}
	var status *statusError
	switch {
	case j.o.NoProbe:
		c.ok("management", "the HTTP API at %s does not answer (%s), and --no-probe skips the checks that need it",
			j.f.management.url, err)
	case errors.As(err, &status) && (status.code == 401 || status.code == 403):
		c.warn("management",
			command("rabbitmqctl set_user_tags %s%s management", problem.Dashed(j.f.user), shell(j.f.user)).
				noted("or use a user that has the tag: --management-url http://USER:PASSWORD@HOST:15672"),
			"the HTTP API at %s does not let user %q in (%s): %s", j.f.management.url, j.f.user, err, hidden)
	default:
		c.warn("management",
			command("rabbitmq-plugins enable rabbitmq_management").
				noted("or set its address: --management-url http://HOST:15672; or --no-probe"),
			"the HTTP API at %s does not answer (%s): %s", j.f.management.url, err, hidden)
	}
}

// needsManagement: queues of the default exchange can be checked with AMQP alone.
func (j *brokerJudge) needsManagement() bool {
	return slices.ContainsFunc(j.f.asked, func(d destination) bool {
		return d.exchange != "" && !isNotFound(j.f.exchanges[d.exchange])
	})
}

// curl returns a call of the management API, which works with every version.
func (j *brokerJudge) curl(method, kind, path, body string) steps {
	api := managementAPI{vhost: j.f.vhost}
	address := cmp.Or(j.f.management.url, "http://HOST:15672") + "/api/" + api.of(kind, strings.Split(path, "\x00")...)
	return command("curl -u ADMIN -X %s %s -H 'Content-Type: application/json' -d %s",
		method, shell(address), shell(body))
}
