package amqp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/amqpdial"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestNodesThatFailedLastAreTriedLast(t *testing.T) {
	all, err := amqpdial.Parse("amqp://a,b,c,d")
	must(t, err)
	known := make(nodes)
	addresses := func() (hosts string) {
		for _, node := range known.order(all) {
			hosts += node.URI.Host
		}
		return hosts
	}
	known.failed(all[2])
	known[all[1].Address()] = time.Now().Add(-time.Hour)
	seen := make(map[string]bool)
	for range 200 { // each of two equally likely orders is missing once in 2^199 runs
		seen[addresses()] = true
	}
	if len(seen) != 2 || !seen["adbc"] || !seen["dabc"] {
		t.Errorf("the orders are %v, want a and d in any order, b, c", seen)
	}
	delete(known, all[2].Address())
	known.failed(all[0])
	known.failed(all[3])
	if order := addresses(); !strings.HasPrefix(order, "cb") {
		t.Errorf("the order is %s: c has accepted, and b failed an hour ago", order)
	}
}

// records is the log of a publisher.
type records struct{ publishtest.Buffer }

func (r *records) connected(t *testing.T) (last struct {
	Address  string
	Attempts int
	Failed   string
},
) {
	t.Helper()
	for _, line := range r.Lines() {
		if strings.Contains(line, `"broker_connected"`) {
			must(t, json.Unmarshal([]byte(line), &last))
		}
	}
	return last
}

func withNodes(t *testing.T, raw string, hosts ...string) string {
	t.Helper()
	const placeholder = "nodes:1"
	return strings.Replace(withHost(t, raw, placeholder), placeholder, strings.Join(hosts, ","), 1)
}

// newOnNodes returns a publisher that tries these nodes in this order, and its log.
func newOnNodes(t *testing.T, vhost string, timeout time.Duration, hosts ...string) (*Publisher, *records) {
	t.Helper()
	log := &records{}
	p, err := New(Config{
		URL: withNodes(t, vhost, hosts...), SendTimeout: timeout,
		Logger: slog.New(slog.NewJSONHandler(io.MultiWriter(log, t.Output()), nil)),
	})
	must(t, err)
	for i, host := range hosts {
		p.nodes[host] = time.Now().Add(time.Duration(i-len(hosts)) * time.Hour)
	}
	return p, log
}

func closedPort(t *testing.T) string {
	t.Helper()
	port, err := services.FreePort()
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// One node refuses, one accepts the connection and never answers. The time limit of the latter is longer than the test
// may take, so the publisher does not wait for it.
func TestANodeThatAnswersIsUsedBesideOthersThatDoNot(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	ended := make(chan error, 1)
	mute := services.Serve(t, func(client net.Conn) { // and says nothing
		_, err := io.Copy(io.Discard, client)
		ended <- err
	})
	refusing := closedPort(t)
	p, log := newOnNodes(t, broker.VHost(t), 24*time.Hour, mute, refusing, broker.Addr())
	r := start(t, p)
	r.AwaitPhase(t, publish.Ready)
	if err := await.Receive(t, "the silent node is tried, and its connection closed", ended); err != nil {
		t.Error(err)
	}
	got := log.connected(t)
	if got.Address != broker.Addr() || got.Attempts != 3 || !strings.Contains(got.Failed, refusing) {
		t.Errorf("logged %+v, want %s at the third attempt, and that %s failed", got, broker.Addr(), refusing)
	}
	r.Stop(t)
	if list, err := p.address.Nodes(); err != nil || p.nodes.order(list)[0].Address() != broker.Addr() {
		t.Errorf("the node that answered is not the first to try: %v, %v", p.nodes, err)
	}
}

// Both nodes are the same broker behind proxies.
func TestALostConnectionMovesToAnotherNode(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	vhost, a, q := withQueue(t)
	proxies := []*services.Proxy{services.NewProxy(t, broker.Addr()), services.NewProxy(t, broker.Addr())}
	p, log := newOnNodes(t, vhost, 0, proxies[0].Addr(), proxies[1].Addr())
	r := start(t, p)
	r.AwaitPhase(t, publish.Ready)
	f := startFlow(r, &publishtest.Maker{}, "", q, 100)
	for i := range 4 {
		used, other := proxies[i%2], proxies[(i+1)%2]
		if got := log.connected(t); got.Address != used.Addr() || got.Attempts != 0 {
			t.Errorf("connected to %s at attempt %d, want %s and no attempts to count", got.Address, got.Attempts, used.Addr())
		}
		awaitConfirms(t, r, 200)
		mark := r.Mark()
		used.Refuse()
		used.Cut()
		r.AwaitSince(t, mark, publish.Ready)
		used.Accept()
		if other.Connections() != 1 || used.Connections() != 0 {
			t.Errorf("%d connections to the node that was lost, %d to the other one", used.Connections(), other.Connections())
		}
	}
	results := f.end(t)
	checkNotCharged(t, results)
	checkArrived(t, results, a.drain(q))
}

// The text names every node, and the publisher connects when one is back.
func TestAllNodesAreTriedAgainWhenAllHaveFailed(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	proxy := services.NewProxy(t, broker.Addr())
	proxy.Refuse()
	down := closedPort(t)
	p, log := newOnNodes(t, broker.VHost(t), 0, down, proxy.Addr())
	r := start(t, p)
	await.Until(t, "the state names both nodes", func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return slices.ContainsFunc(r.States, func(s publish.State) bool {
			return strings.Contains(s.Detail, down) && strings.Contains(s.Detail, proxy.Addr())
		})
	})
	proxy.Accept()
	r.AwaitPhase(t, publish.Ready)
	if got := log.connected(t); got.Address != proxy.Addr() {
		t.Errorf("connected to %s, want %s", got.Address, proxy.Addr())
	}
}

// A wrong password is wrong on every node: its cure comes before that of a node that is down.
func TestARejectedLoginIsReportedBeforeAnUnreachableNode(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	wrong := strings.Replace(broker.VHost(t), "guest:", "nobody:", 1)
	p, _ := newOnNodes(t, wrong, 0, closedPort(t), broker.Addr())
	list, err := p.address.Nodes()
	must(t, err)
	_, err = p.openFirst(t.Context(), list)
	var failed *amqpdial.DialError
	if !errors.As(err, &failed) || failed.Part != "login" {
		t.Errorf("the first error is %v, want that of the login", err)
	}
}
