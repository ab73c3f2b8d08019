package amqp

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/publish"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

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
