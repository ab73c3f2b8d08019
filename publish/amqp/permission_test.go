package amqp

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// Messages that the broker took before it closed the channel are not reported as rejected. Their retry would not be
// marked.
func TestARevokedPermissionRejectsOnlyLaterMessages(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	u := services.VHost(t)
	parsed, _ := url.Parse(u)
	vhost, user := strings.TrimPrefix(parsed.Path, "/"), services.Name(t)
	must(t, broker.AddUser(t.Context(), user, "secret"))
	must(t, broker.Permit(t.Context(), vhost, user, services.AllPermissions()))
	parsed.User = url.UserPassword(user, "secret")
	a := newAdmin(t, u)
	q := a.queue(services.Name(t), nil)
	r := startAMQP(t, Config{URL: parsed.String()})
	var k publishtest.Maker
	first := k.Many(10, "", q)
	publishtest.AllAre(t, r.Answers(t, first...), outbox.Confirmed)

	must(t, broker.Permit(t.Context(), vhost, user, services.Permissions{}))
	done := make(chan error, 1)
	go func() { done <- broker.ForgetPermissions(t.Context()) }()
	var all []*outbox.Message
	for forgotten := false; !forgotten; {
		some := k.Many(100, "", q)
		r.PublishAll(some...)
		all = append(all, some...)
		if n := len(all) - 1500; n > 0 {
			r.AwaitResults(t, all[n])
		}
		select {
		case err := <-done:
			must(t, err)
			forgotten = true
		default:
		}
	}
	results := r.AwaitResults(t, all...)
	arrived := map[string]bool{}
	for _, d := range a.drain(q) {
		arrived[d.MessageId] = true
	}
	var confirmed, unknown, rejected, wrong int
	for _, result := range results {
		there := arrived[result.Message.MessageID.String()]
		switch {
		case result.Outcome == outbox.Confirmed:
			confirmed++
		case result.Outcome == outbox.Rejected:
			rejected++
			if there && !result.MaybeSent {
				wrong++
			}
		default:
			unknown++
		}
	}
	t.Logf("%d confirmed, %d unknown, %d rejected, of these %d are in the queue", confirmed, unknown, rejected, wrong)
	if wrong > 0 {
		t.Errorf("%d messages are in the queue and were reported as rejected", wrong)
	}
}

// RabbitMQ refuses what its authorization service cannot answer. If the service is down, that is an outage. If it fails
// only at one exchange or routing key, the messages of others go on.
func TestAnAuthorizationServiceThatIsDownChargesNobody(t *testing.T) {
	services.Thorough(t, "starts its own server")
	broker := services.PrivateRabbitMQ(t)
	if err := broker.EnablePlugin(t.Context(), "rabbitmq_auth_backend_http"); err != nil {
		t.Skip(err)
	}
	var down atomic.Bool
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() || r.FormValue("name") == "broken" || r.FormValue("routing_key") == "broken" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "allow")
	}))
	t.Cleanup(service.Close)
	a := newAdmin(t, broker.URL(""))
	a.exchange("topics", "topic", a.queue("q", nil), "#")
	a.exchange("broken", "topic", "q", "#")
	for _, part := range []string{"user", "vhost", "resource", "topic"} {
		setting := fmt.Sprintf(`ok = application:set_env(rabbitmq_auth_backend_http, %s_path, "%s/%[1]s").`, part, service.URL)
		ctl(t, broker, "eval", setting)
	}
	const backends = `application:set_env(rabbit, auth_backends, [{rabbit_auth_backend_internal, rabbit_auth_backend_http}]).`
	ctl(t, broker, "eval", backends)
	r := startAMQP(t, Config{URL: broker.URL("")})
	var k publishtest.Maker
	mark := r.Mark()
	for _, bad := range []*outbox.Message{k.Make("broken", "k", `1`), k.Make("topics", "broken", `1`)} {
		others := k.Many(20, "topics", "k")
		r.PublishAll(append(others, bad)...)
		publishtest.AllAre(t, r.AwaitResults(t, others...), outbox.Confirmed)
		if got := r.AwaitResults(t, bad)[0]; got.Outcome == outbox.Rejected || got.RetryIn != unasked {
			t.Errorf("the service fails at it: %+v", got)
		}
	}
	if r.Mark() != mark {
		t.Error("the connection was lost because the service fails at one name")
	}
	down.Store(true)
	some := append(k.Many(5, "amq.topic", "k"), k.Many(5, "amq.direct", "k")...)
	checkNotCharged(t, r.Answers(t, some...))
	r.AwaitSince(t, mark, publish.Connecting)
	down.Store(false)
	r.publishUntilConfirmed(t, k.Many(20, "topics", "k")...)
}
