package doctor_test

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// channel is that of all declarations, with the first login.
func (p *patient) channel() *amqp.Channel {
	p.Helper()
	if p.declares == nil {
		var err error
		p.declares, err = services.DialAMQP(p, p.RabbitMQ.Value).Channel()
		must(p, err)
	}
	return p.declares
}

func (p *patient) exchange(name, kind string, args amqp.Table) {
	p.Helper()
	must(p, p.channel().ExchangeDeclare(name, kind, true, false, false, false, args))
}

// queue declares a queue, and binds it by pairs of an exchange and a key.
func (p *patient) queue(name string, args amqp.Table, bindings ...string) {
	p.Helper()
	_, err := p.channel().QueueDeclare(name, true, false, false, false, args)
	must(p, err)
	for binding := range slices.Chunk(bindings, 2) {
		must(p, p.channel().QueueBind(name, binding[1], binding[0], false, nil))
	}
}

// bound declares the exchange shop, and the queue orders with the binding orders.#.
func (p *patient) bound() {
	p.Helper()
	p.exchange("shop", amqp.ExchangeTopic, nil)
	p.queue("orders", nil, "shop", "orders.#")
}

func (p *patient) insert(exchange any, keys ...string) {
	p.Helper()
	for _, key := range keys {
		p.Exec("INSERT INTO outbox (exchange, routing_key, payload) VALUES ($1, $2, '1')", exchange, key)
	}
}

// asUser lets the relay log in as a new user with this permission to write, and returns its name.
func (p *patient) asUser(write string) (name string) {
	p.Helper()
	name = services.Name(p)
	u := parsed(p, p.RabbitMQ.Value)
	err := p.broker.AddUser(p.Context(), name, "s3cr3t")
	if err == nil && write != "" {
		err = p.broker.Permit(p.Context(), strings.TrimPrefix(u.Path, "/"), name, services.Permissions{Write: write})
	}
	must(p, err)
	u.User = url.UserPassword(name, "s3cr3t")
	p.RabbitMQ.Value = u.String()
	return name
}

func parsed(t testing.TB, address string) *url.URL {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	return u
}

func TestAHealthyBrokerPasses(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	p.bound()
	p.insert("shop", "orders.created", "orders.paid")
	p.insert(nil, "orders", p.replyTo())
	r := p.examine()
	r.wantOthersOK()
	r.want(doctor.OK, doctor.Routing, "waiting", "4 rows and 0 dead letters, for 4 pairs")
	r.want(doctor.OK, doctor.Routing, "route", "each of 4 routing keys reaches a queue")
	if q, err := p.channel().QueueDeclarePassive("orders", true, false, false, false, nil); err != nil || q.Messages != 0 {
		t.Errorf("the examination left %d messages, %v", q.Messages, err)
	}
	if rows := p.IDs("attempts = 0 AND available_at IS NULL"); len(rows) != 4 {
		t.Errorf("the examination left rows %v", rows)
	}
}

// replyTo returns the address of a client that waits for a direct reply, and fails the test if one arrives.
func (p *patient) replyTo() string {
	p.Helper()
	p.queue("questions", nil)
	asked, err := p.channel().Consume("questions", "", true, false, false, false, nil)
	must(p, err)
	replies, err := p.channel().Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	must(p, err)
	must(p, p.channel().PublishWithContext(p.Context(), "", "questions", true, false, amqp.Publishing{ReplyTo: "amq.rabbitmq.reply-to"}))
	address := (<-asked).ReplyTo
	p.Cleanup(func() {
		// The answer to this call comes after a reply that is in flight.
		if _, err := p.channel().QueueDeclarePassive("questions", true, false, false, false, nil); err != nil || len(replies) > 0 {
			p.Errorf("%d replies came, %v", len(replies), err)
		}
	})
	return address
}

func TestEventsExchangeIsExamined(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	p.EventsExchange = "events"
	p.fix(p.examine().want(doctor.Problem, doctor.RabbitMQ, "exchange", `exchange "events" does not exist`, "(--events-exchange)"))
	r := p.examine()
	r.wantOthersOK()
	if !strings.Contains(r.String(), `may publish to exchange "events"`) {
		t.Errorf("the permission was not examined: %s", r)
	}
}

func TestMissingTopologyIsRepairedByTheFix(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	p.Exchange = "It's %missing/"
	p.insert(nil, "any")
	p.insert("shop", "orders.created", "parcels.sent")
	p.insert("", "orders", "no such queue")
	p.fix(p.examine().want(doctor.Problem, doctor.RabbitMQ, "exchange", "does not exist in virtual host", "--exchange"))
	p.bound()
	r := p.examine()
	f := r.want(doctor.Problem, doctor.Routing, "route")
	if f.Subject == "" {
		t.Error("the finding has no subject")
	}
	for _, words := range []string{`exchange "shop" has no queue for routing key "parcels.sent"`, `exchange "It's %missing/" has no queue for routing key "any"`, `queue "no such queue", which the default exchange would deliver to, does not exist`} {
		if !strings.Contains(r.String(), words) {
			t.Errorf("not said: %s", words)
		}
	}
	for _, f := range r.findings {
		if f.Name == "route" {
			f.Fix[0] = strings.Replace(f.Fix[0], "/q/QUEUE", "/q/orders", 1)
			p.fix(f)
		}
	}
	p.examine().wantOthersOK()
}

func TestMissingBrokerPermissionsAreRepairedByTheFix(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	p := healthy(t, services.SharedPostgres(t)).withBroker(broker)
	p.bound()
	p.Exchange = "shop"
	p.insert("shop", "orders.created")
	p.insert(nil, "orders.created")
	admin, u := p.RabbitMQ.Value, parsed(t, p.RabbitMQ.Value)
	name := p.asUser("")
	p.fix(p.examine().want(doctor.Problem, doctor.RabbitMQ, "vhost", "refused for user", "set_permissions"))
	must(t, broker.Permit(t.Context(), strings.TrimPrefix(u.Path, "/"), name, services.Permissions{Write: "nothing"}))
	r := p.examine()
	p.fix(r.want(doctor.Problem, doctor.RabbitMQ, "write", "may not publish", "access", "'^(shop)$'"))
	// A row can name any exchange, so that is no reason for a permission.
	p.insert("amq.topic", "k")
	if f := p.examine().want(doctor.Problem, doctor.RabbitMQ, "write", "amq.topic", "no setting does"); strings.Contains(strings.Join(f.Fix, "\n"), "set_permissions") {
		t.Errorf("the fix grants what a row names: %s", f.Fix)
	}
	p.exec("DELETE FROM outbox WHERE exchange = 'amq.topic'")
	r = p.examine()
	r.want(doctor.OK, doctor.RabbitMQ, "write")
	r.wantOthersOK()

	// The user of the API is that of the AMQP URL unless another is given.
	api, _ := url.Parse(broker.ManagementURL())
	api.User = nil
	p.ManagementURL = api.String()
	p.fix(p.examine().want(doctor.Warning, doctor.RabbitMQ, "management", "401", "set_user_tags"))
	p.examine().wantOthersOK()

	for _, wrong := range []struct{ url, check, words string }{
		{strings.Replace(p.RabbitMQ.Value, "s3cr3t", "wr0ng", 1), "login", "change_password"},
		{strings.Replace(admin, u.Path, "/no%20such", 1), "vhost", "rabbitmqctl add_vhost 'no such'"},
	} {
		p.RabbitMQ.Value = wrong.url
		r := p.examine()
		r.want(doctor.Problem, doctor.RabbitMQ, wrong.check, wrong.words)
		if text := r.String(); strings.Contains(text, "s3cr3t") || strings.Contains(text, "wr0ng") {
			t.Errorf("a password is shown: %s", text)
		}
	}
}

func TestBrokerLimitsAreReported(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	if !broker.CanCtl() {
		t.Skip("there is no rabbitmqctl for this broker")
	}
	for limit, test := range map[string]struct{ set, check, words, fix, end string }{
		"connections of the virtual host": {`set_vhost_limits -p VHOST '{"max-connections": 0}'`, "vhost", "limit", "clear_vhost_limits", ""},
		"connections of the user":         {`set_user_limits USER '{"max-connections": 0}'`, "vhost", "limit", "clear_user_limits", ""},
		"channels of the user":            {`set_user_limits USER '{"max-channels": 0}'`, "connection", "limit", "clear_user_limits", ""},
		"topics of the user": {
			"set_topic_permissions -p VHOST USER shop '^orders.created$' ''", "write", "orders.paid",
			"list_user_topic_permissions", "clear_topic_permissions -p VHOST USER",
		},
	} {
		t.Run(limit, func(t *testing.T) {
			p := healthy(t, services.SharedPostgres(t)).withBroker(broker)
			p.bound()
			p.insert("shop", "orders.created", "orders.paid")
			vhost, name := strings.TrimPrefix(parsed(t, p.RabbitMQ.Value).Path, "/"), p.asUser(".*")
			fill := strings.NewReplacer("VHOST", vhost, "USER", name)
			p.ctl("rabbitmqctl " + fill.Replace(test.set))
			p.fix(p.examine().want(doctor.Problem, doctor.RabbitMQ, test.check, test.words, test.fix))
			if test.end != "" { // only a person knows whether the user may do it
				p.ctl("rabbitmqctl " + fill.Replace(test.end))
			}
			p.examine().wantOthersOK()
		})
	}
}

func TestQueuesThatDropAndAlternateExchangesAreReported(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	p := healthy(t, services.SharedPostgres(t)).withBroker(broker)
	p.bound()
	p.Exchange = "main"
	p.exchange("main", amqp.ExchangeDirect, amqp.Table{"alternate-exchange": "shop"})
	p.queue("short", amqp.Table{"x-max-length": 1_000_000}, "main", "k")
	p.insert(nil, "k", "orders.by.the.alternate")
	r := p.examine()
	r.want(doctor.Warning, doctor.Routing, "alternate_exchange", `"main" has the alternate exchange "shop"`)
	p.fix(r.want(doctor.Warning, doctor.Routing, "overflow", "max-length 1000000", "reject-publish"))
	r.want(doctor.OK, doctor.Routing, "route", "each of 2")
	p.examine().wantOthersOK("alternate_exchange")

	vhost := strings.TrimPrefix(parsed(t, p.RabbitMQ.Value).Path, "/")
	must(t, broker.SetPolicy(t.Context(), vhost, "bounded", services.Policy{Pattern: "^ord", ApplyTo: "queues", Definition: map[string]any{"max-length-bytes": 5000, "message-ttl": 60000}}))
	must(t, broker.SetPolicy(t.Context(), vhost, "other", services.Policy{Pattern: "shop", ApplyTo: "exchanges", Definition: map[string]any{"alternate-exchange": "amq.fanout"}}))
	p.Exchange = "shop"
	p.exec("DELETE FROM outbox")
	r = p.examine()
	p.fix(r.want(doctor.Warning, doctor.Routing, "alternate_exchange", "amq.fanout", "clear_policy"))
	p.fix(r.want(doctor.Warning, doctor.Routing, "overflow", `"orders" is limited (max-length-bytes 5000)`, `"message-ttl":60000`, "bounded"))
	p.examine().wantOthersOK("message_ttl")
}

// A queue drops a message after its time to live, unless it can hand it to another exchange.
func TestQueuesThatExpireMessagesAreReported(t *testing.T) {
	t.Parallel()
	broker := services.SharedRabbitMQ(t)
	p := healthy(t, services.SharedPostgres(t)).withBroker(broker)
	p.bound()
	p.Exchange = "main"
	p.exchange("main", amqp.ExchangeFanout, nil)
	p.exchange("inner", amqp.ExchangeFanout, nil)
	must(t, p.channel().ExchangeBind("inner", "", "main", false, nil))
	for name, args := range map[string]amqp.Table{
		"short":   {"x-message-ttl": 60_000},
		"kept":    {"x-message-ttl": 60_000, "x-dead-letter-exchange": "amq.fanout"},
		"to-none": {"x-message-ttl": 60_000, "x-dead-letter-exchange": "missing"},
		"rejects": {"x-max-length": 10, "x-overflow": "reject-publish"},
		"copies":  {"x-max-length": 10, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "amq.fanout"},
		"moves":   {"x-max-length": 10, "x-dead-letter-exchange": "amq.fanout"},
		"returns": {"x-queue-type": "quorum", "x-delivery-limit": 3},
		"retains": {"x-queue-type": "quorum", "x-delivery-limit": 3, "x-dead-letter-exchange": "amq.fanout"},
		"log":     {"x-queue-type": "stream", "x-max-length-bytes": 1_000_000},
	} {
		p.queue(name, args, "inner", "")
	}
	p.insert(nil, "k")
	r := p.examine()
	level := map[string]doctor.Level{}
	for _, f := range r.findings {
		if f.Name == "overflow" || f.Name == "message_ttl" || f.Name == "delivery_limit" {
			level[f.Name+" "+f.Subject] = f.Level
		}
	}
	if want := map[string]doctor.Level{
		"delivery_limit returns": doctor.Warning, "message_ttl short": doctor.Warning, "message_ttl to-none": doctor.Warning,
		"overflow rejects": doctor.OK, "overflow moves": doctor.OK, "overflow copies": doctor.Warning,
	}; !maps.Equal(level, want) {
		t.Errorf("got %v, want %v", level, want)
	}
	for _, f := range r.findings {
		if f.Name == "message_ttl" || f.Name == "delivery_limit" {
			f.Fix[0] = strings.Replace(f.Fix[0], "EXCHANGE", "amq.topic", 1)
			p.fix(f)
		}
	}
	p.examine().wantOthersOK("overflow")
}

func TestAnAlarmOfTheBrokerIsReported(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	broker := services.PrivateRabbitMQ(t)
	p := healthy(t, services.SharedPostgres(t)).withBroker(broker)
	p.bound()
	p.insert("shop", "orders.created")
	must(t, broker.RaiseMemoryAlarm(t.Context()))
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "alarms", "memory", "rabbitmq-diagnostics alarms")
	p.NoProbe = true
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "alarms", "blocked")
	p.ManagementURL = "http://127.0.0.1:1"
	p.examine().want(doctor.OK, doctor.RabbitMQ, "alarms", "not checked")
	p.NoProbe = false
	must(t, broker.ClearMemoryAlarm(t.Context()))
	p.examine().want(doctor.OK, doctor.RabbitMQ, "alarms", "none")
}

func TestWithoutTheManagementAPIFewerChecksRun(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	p.ManagementURL = "http://127.0.0.1:1"
	p.bound()
	p.insert("", "orders")
	r := p.examine()
	r.wantOthersOK("management")
	r.want(doctor.Warning, doctor.RabbitMQ, "management", "not checked: limits of queues", "--no-probe")
	p.insert("shop", "parcels.sent")
	p.examine().want(doctor.Warning, doctor.RabbitMQ, "management", "not checked: whether a queue takes each message", "rabbitmq-plugins enable rabbitmq_management")
	p.exec("UPDATE outbox SET attempts = 1, available_at = now() + interval '1 hour', last_error = 'unroutable: NO_ROUTE (312)' WHERE exchange = 'shop'")
	p.examine().want(doctor.Problem, doctor.Routing, "route", `had no queue for routing key "parcels.sent"`, "1 row examined was rejected")
	p.exec("DELETE FROM outbox WHERE attempts > 0")
	p.insert("shop", "parcels.sent")
	p.NoProbe = true
	p.examine().wantOthersOK()
}

func TestAnUnreachableBrokerIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	p.RabbitMQ.Value = "amqp://u:s3cr3t@127.0.0.1:1/"
	r := p.examine()
	r.want(doctor.Problem, doctor.RabbitMQ, "reachable", "connection refused", "host and port")
	r.want(doctor.OK, doctor.Tables, "table")
	p.RabbitMQ.Value = strings.Replace(services.SharedRabbitMQ(t).URL(""), "amqp://", "amqps://", 1)
	r = p.examine()
	r.want(doctor.Problem, doctor.RabbitMQ, "reachable", "5671")
	if strings.Contains(r.String(), "guest:guest") {
		t.Error("the password is shown")
	}
}

// Dead letters and retries are examined as rows that wait, and say which queues rejected messages.
func TestDeadLettersAndFullQueuesAreExamined(t *testing.T) {
	t.Parallel()
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	p.queue("full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	p.exec(`INSERT INTO outbox_dead_letter (id, message_id, created_at, attempts, schema_version, exchange, routing_key, payload, failure_reason, last_error)
		SELECT i, gen_random_uuid(), now(), 6, 1, e, k, '1', 'retries_exhausted', r FROM (VALUES (1, 'gone', 'k', 'exchange_missing: NOT_FOUND'),
			(2, '', 'no_queue', 'unroutable: NO_ROUTE'), (3, '', 'full', 'nack: RabbitMQ answered with a nack'),
			(4, NULL, 'k', 'unroutable: no queue took the message with routing key "k" from exchange "amq.direct"'),
			(5, NULL, 'k', 'exchange_missing: NOT_FOUND - no exchange ''moved'' in vhost ''/'' (404)')) v (i, e, k, r)`,
		"INSERT INTO outbox (exchange, routing_key, payload, attempts, available_at, last_error) VALUES ('', 'full', '1', 1, now() + interval '1 hour', 'nack: x')")
	r := p.examine()
	r.want(doctor.OK, doctor.Routing, "waiting", "1 row and 5 dead letters, for 5 pairs of exchange and routing key")
	r.want(doctor.Problem, doctor.RabbitMQ, "exchange", `exchange "gone" does not exist`)
	r.want(doctor.Problem, doctor.Routing, "route", `queue "no_queue"`, "1 row examined was rejected for that before")
	// Another relay, with another --exchange, published these.
	for _, says := range []string{
		`exchange "amq.direct" has no queue for routing key "k"`, "/e/amq.direct/q/QUEUE", `exchange "moved" does not exist`,
	} {
		if !strings.Contains(r.String(), says) {
			t.Errorf("there is no %s in\n%s", says, r)
		}
	}
	r.want(doctor.Warning, doctor.Routing, "nack", `2 messages examined were rejected with a nack, sent to the default exchange with routing key "full"`, "add consumers")
	must(t, p.channel().PublishWithContext(t.Context(), "", "full", false, false, amqp.Publishing{Body: []byte("x")}))
	await.Until(t, "RabbitMQ has counted the message", func() bool {
		r := p.examine()
		at := slices.IndexFunc(r.findings, func(f doctor.Finding) bool { return f.Name == "overflow" && f.Level == doctor.Problem })
		return at >= 0 && strings.Contains(r.findings[at].Message, `queue "full" is full (max-length 1) and rejects messages`)
	})
}
