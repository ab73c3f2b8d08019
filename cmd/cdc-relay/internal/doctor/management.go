package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
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
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Internal  bool           `json:"internal"`
	Arguments map[string]any `json:"arguments"`
}

type binding struct {
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"` // queue or exchange
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

type queueFacts struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"` // classic, quorum or stream
	Arguments map[string]any `json:"arguments"`
}

// policy sets arguments of queues or exchanges with matching names.
type policy struct {
	Name       string         `json:"name"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Definition map[string]any `json:"definition"`
	Priority   int            `json:"priority"`
	operator   bool
}

// Limits for the answers of the API.
const (
	mostExchanges = 100
	mostQueues    = 200
	mostAnswer    = 32 << 20 // bytes
)

// gatherManagement asks for the bindings of the destinations' exchanges.
func (o Options) gatherManagement(ctx context.Context, node amqpdial.Node, broker *brokerFacts) managementFacts {
	f := managementFacts{
		exchanges: map[string]exchangeFacts{},
		bindings:  map[string][]binding{},
		queues:    map[string]queueFacts{},
	}
	api, err := o.newAPI(node)
	if err != nil {
		f.err = err
		return f
	}
	defer api.client.CloseIdleConnections()
	f.url = api.base
	vhost := url.PathEscape(node.URI.Vhost)
	var list []exchangeFacts
	if f.err = api.get(ctx, "exchanges/"+vhost, &list); f.err != nil {
		return f
	}
	for _, x := range list {
		f.exchanges[x.Name] = x
	}
	f.err = errors.Join(api.get(ctx, "policies/"+vhost, &f.policies), f.askOperatorPolicies(ctx, api, vhost))
	f.askDown(ctx, api, vhost)
	f.alarms = api.health(ctx)
	f.follow(ctx, api, vhost, o.exchangesOf(broker.asked))
	for _, d := range broker.asked {
		if d.exchange == "" && broker.queues[d.routingKey] == nil {
			f.askQueue(ctx, api, vhost, d.routingKey)
		}
	}
	return f
}

func (f *managementFacts) askOperatorPolicies(ctx context.Context, api *managementAPI, vhost string) error {
	var operators []policy
	err := api.get(ctx, "operator-policies/"+vhost, &operators)
	for _, p := range operators {
		p.operator = true
		f.policies = append(f.policies, p)
	}
	return err
}

// askDown asks for the queues that are down, which come first by their state. It is left out if there is an error
// before.
func (f *managementFacts) askDown(ctx context.Context, api *managementAPI, vhost string) {
	if f.err != nil {
		return
	}
	var page struct {
		Items []struct{ Name, State string } `json:"items"`
	}
	f.err = api.get(ctx, "queues/"+vhost+"?columns=name,state&sort=state&page=1&page_size=100", &page)
	for _, q := range page.Items {
		if q.State == "down" {
			f.down = append(f.down, q.Name)
		}
	}
}

// follow asks for the bindings of exchanges, and of the exchanges that they lead to.
func (f *managementFacts) follow(ctx context.Context, api *managementAPI, vhost string, names []string) {
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
		if f.err = api.get(ctx, "exchanges/"+vhost+"/"+url.PathEscape(name)+"/bindings/source", &found); f.err != nil {
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
				f.askQueue(ctx, api, vhost, b.Destination)
			}
		}
	}
}

func (f *managementFacts) askQueue(ctx context.Context, api *managementAPI, vhost, name string) {
	if _, done := f.queues[name]; done || f.err != nil || len(f.queues) >= mostQueues {
		return
	}
	var q queueFacts
	err := api.get(ctx, "queues/"+vhost+"/"+url.PathEscape(name), &q)
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
	base           string
	user, password string
	client         *http.Client
}

// The default ports of the API, without and with TLS.
const managementPort, managementTLSPort = 15672, 15671

// baseURL returns the URL of the setting, or the usual port of the broker's host.
func (o Options) baseURL(uri amqp091.URI) (base string, user *url.Userinfo, err error) {
	user = url.UserPassword(uri.Username, uri.Password)
	if o.ManagementURL == "" {
		if uri.Scheme == "amqps" {
			return "https://" + net.JoinHostPort(uri.Host, fmt.Sprint(managementTLSPort)), user, nil
		}
		return "http://" + net.JoinHostPort(uri.Host, fmt.Sprint(managementPort)), user, nil
	}
	u, err := url.Parse(o.ManagementURL)
	if err != nil {
		return "", nil, errors.New("the management URL cannot be read")
	}
	if u.User != nil {
		user = u.User
	}
	u.User = nil
	return strings.TrimRight(u.String(), "/"), user, nil
}

func (o Options) newAPI(node amqpdial.Node) (*managementAPI, error) {
	base, user, err := o.baseURL(node.URI)
	if err != nil {
		return nil, err
	}
	config, err := node.TLS(o.TLS) // the API of the same broker
	if err != nil {
		return nil, err
	}
	password, _ := user.Password()
	return &managementAPI{
		base: base, user: user.Username(), password: password,
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
	request.SetBasicAuth(a.user, a.password)
	response, err := a.client.Do(request)
	if err != nil {
		var long *url.Error
		if errors.As(err, &long) {
			err = long.Err // without the URL: the caller names it
		}
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body := io.LimitReader(response.Body, mostAnswer)
	if response.StatusCode != http.StatusOK {
		var said struct {
			Reason any `json:"reason"`
		}
		_ = json.NewDecoder(body).Decode(&said) // the body may have the reason
		reason, _ := said.Reason.(string)
		return &statusError{code: response.StatusCode, reason: reason}
	}
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the answer of %s/api/%s: %w", a.base, path, err)
	}
	return nil
}

// health returns the alarms of the health check, which fails with 503 if there is one. It returns "" if the API does
// not have this check.
func (a *managementAPI) health(ctx context.Context) string {
	var ok struct{}
	err := a.get(ctx, "health/checks/alarms", &ok)
	var status *statusError
	if errors.As(err, &status) && status.code == http.StatusServiceUnavailable {
		if status.reason == "" {
			return "a resource alarm is in effect in the cluster"
		}
		return status.reason
	}
	return ""
}
