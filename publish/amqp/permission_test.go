package amqp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
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

// subject is a user name as identity providers give: RabbitMQ then cuts the text of the rejection.
const subject = "6f1d2c3b-4a59-4e87-9b10-2c3d4e5f6a7b"

// tokenBroker accepts OAuth 2 tokens as passwords. Token returns one that is valid until then.
func tokenBroker(t *testing.T) (broker *services.RabbitMQ, token func(until time.Time) string) {
	t.Helper()
	services.Thorough(t, "starts its own server")
	broker = services.PrivateRabbitMQ(t)
	if err := broker.EnablePlugin(t.Context(), "rabbitmq_auth_backend_oauth2"); err != nil {
		t.Skip(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	key := []byte("a key of thirty-two bytes, 256 b")
	settings := fmt.Sprintf(`
		ok = application:set_env(rabbitmq_auth_backend_oauth2, resource_server_id, <<"rabbitmq">>),
		ok = application:set_env(rabbitmq_auth_backend_oauth2, key_config, [{default_key, <<"k">>}, {signing_keys,
			#{<<"k">> => {map, #{<<"kty">> => <<"oct">>, <<"k">> => <<"%s">>}}}}]),
		ok = application:set_env(rabbit, channel_tick_interval, 1000), %% a channel asks again; else after a minute
		ok = application:set_env(rabbit, auth_backends, [rabbit_auth_backend_oauth2, rabbit_auth_backend_internal]).`,
		encode(key))
	ctl(t, broker, "eval", settings)
	return broker, func(until time.Time) string {
		part := func(value map[string]any) string {
			text, err := json.Marshal(value)
			must(t, err)
			return encode(text)
		}
		text := part(map[string]any{"alg": "HS256", "typ": "JWT", "kid": "k"}) + "." + part(map[string]any{
			"aud": []string{"rabbitmq"}, "sub": subject, "exp": until.Unix(),
			"scope": []string{"rabbitmq.read:*/*", "rabbitmq.write:*/*", "rabbitmq.configure:*/*"},
		})
		sign := hmac.New(sha256.New, key)
		_, _ = sign.Write([]byte(text))
		return text + "." + encode(sign.Sum(nil))
	}
}

// When a token expires, RabbitMQ rejects what its connection asks for. That is an outage: no message is rejected. The
// next connection uses the new token of the file.
func TestATokenExpires(t *testing.T) {
	broker, token := tokenBroker(t)
	file := filepath.Join(t.TempDir(), "url")
	put := func(text string) {
		t.Helper()
		u := url.URL{Scheme: "amqp", Host: broker.Addr(), User: url.UserPassword("relay", text)}
		must(t, os.WriteFile(file, []byte(u.String()), 0o600))
	}
	q := newAdmin(t, broker.URL("")).queue(services.Name(t), nil)
	expires := time.Now().Add(await.Scaled(5 * time.Second))
	put(token(expires))
	var log publishtest.Buffer
	r := startAMQP(t, Config{URLFile: file, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var k publishtest.Maker
	first := k.Many(100, "", q)
	publishtest.AllAre(t, r.Answers(t, first...), outbox.Confirmed)

	mark := r.Mark()
	var last outbox.Result
	await.Until(t, "the token has expired", func() bool {
		m := k.Make("", q, `{}`)
		last = r.Answers(t, m)[0]
		return last.Outcome != outbox.Confirmed
	})
	if last.Outcome != outbox.Unknown || !strings.Contains(last.Detail, "token has expired") {
		t.Errorf("%s: %s", last.Outcome, last.Detail)
	}
	r.AwaitSince(t, mark, publish.Connecting)
	await.Until(t, "the log names the file of the token", func() bool {
		return strings.Contains(strings.Join(log.Lines(), "\n"), file+", written 20")
	})
	put(token(time.Now().Add(time.Hour)))
	r.publishUntilConfirmed(t, k.Many(100, "", q)...)
}
