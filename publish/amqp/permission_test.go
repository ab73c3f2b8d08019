package amqp

import (
	"net/url"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
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
	r.PublishAll(first...)
	publishtest.AllAre(t, r.AwaitResults(t, first...), outbox.Confirmed)

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
