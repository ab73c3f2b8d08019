package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/certs"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// tlsPostgres accepts the role "secured" only over TLS and with a certificate of the authority.
func tlsPostgres(t *testing.T, a *certs.Authority) url.URL {
	t.Helper()
	services.Thorough(t, "starts its own server")
	server := services.PrivatePostgres(t)
	put := func(name, text string) string {
		return fmt.Sprintf(`COPY (SELECT unnest(string_to_array(%s, E'\n'))) TO PROGRAM 'umask 077; cat > %s'`, "'"+text+"'", name)
	}
	read := func(name string) string {
		text, err := os.ReadFile(a.File(name))
		must(t, err)
		return strings.TrimSpace(string(text))
	}
	err := server.Exec(
		t.Context(), "postgres",
		"CREATE ROLE secured LOGIN SUPERUSER PASSWORD 's3cr3t'",
		put("server.pem", read("localhost.pem")), put("server.key", read("localhost.key")), put("ca.pem", read("ca.pem")),
		"ALTER SYSTEM SET ssl_cert_file = 'server.pem'", "ALTER SYSTEM SET ssl_key_file = 'server.key'",
		"ALTER SYSTEM SET ssl_ca_file = 'ca.pem'", "ALTER SYSTEM SET ssl = on",
		put("pg_hba.conf", "hostssl all secured all scram-sha-256 clientcert=verify-ca\nhost all secured all reject\nhost all all all scram-sha-256"),
	)
	must(t, err)
	must(t, server.Restart(t.Context(), services.Fast))
	_, port, err := net.SplitHostPort(server.Addr())
	must(t, err)
	return url.URL{Scheme: "postgres", User: url.UserPassword("secured", "s3cr3t"), Host: "localhost:" + port, Path: "/postgres"}
}

// tlsBroker accepts only clients with a certificate of the authority, and has a queue.
func tlsBroker(t *testing.T, a *certs.Authority, queue string) (address string, channel *amqp.Channel) {
	t.Helper()
	services.Thorough(t, "starts its own server")
	broker, host := services.TLSRabbitMQ(t, services.Certificate{CA: a.File("ca.pem"), Cert: a.File("localhost.pem"), Key: a.File("localhost.key")})
	conn := services.DialAMQP(t, broker.URL(""))
	channel, err := conn.Channel()
	must(t, err)
	if _, err := channel.QueueDeclare(queue, false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return "amqps://guest:guest@" + strings.Replace(host, "127.0.0.1", "localhost", 1) + "/", channel
}

// Both servers reject a connection without a client certificate.
func TestTLSWithClientCertificatesToBothServers(t *testing.T) {
	t.Parallel()
	authority, stranger := certs.NewAuthority(t), certs.NewAuthority(t)
	authority.Issue("localhost")
	authority.Issue("relay")
	database := tlsPostgres(t, authority)
	const queue = "secured"
	broker, channel := tlsBroker(t, authority, queue)

	with := func(ca *certs.Authority, certificate bool) string {
		query := url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca.File("ca.pem")}}
		if certificate {
			query.Set("sslcert", authority.File("relay.pem"))
			query.Set("sslkey", authority.File("relay.key"))
		}
		one := database
		one.RawQuery = query.Encode()
		return writeFile(t, "database-url", one.String()+"\n")
	}
	for name, file := range map[string]string{"another authority": with(stranger, true), "no certificate": with(authority, false)} {
		if r := cdcRelay(t, nil, "setup", "--database-url-file", file); r.code != exitFailed || strings.Contains(r.stderr, "s3cr3t") {
			t.Errorf("%s: exit code %d: %s", name, r.code, r.stderr)
		}
	}
	broker += "?cacertfile=" + authority.File("ca.pem")
	env := environment{
		"CDC_RELAY_DATABASE_URL_FILE": with(authority, true), "CDC_RELAY_AMQP_URL_FILE": writeFile(t, "amqp-url", broker+"\n"),
		"CDC_RELAY_HTTP_ADDR":    "",
		"CDC_RELAY_DATABASE_URL": "", "CDC_RELAY_AMQP_URL": "", // remove those of this process
	}
	want(t, cdcRelay(t, env, "setup"), exitDone)
	if r := cdcRelay(t, env, "check"); r.code != exitFailed || !strings.Contains(r.stdout, "# use a client certificate that RabbitMQ accepts") {
		t.Errorf("without a certificate for the broker:\n%s", r.stdout)
	}
	broker += "&certfile=" + authority.File("relay.pem") + "&keyfile=" + authority.File("relay.key")
	env["CDC_RELAY_AMQP_URL_FILE"] = writeFile(t, "amqp-url-2", broker+"\n")
	want(t, cdcRelay(t, env, "check"), exitDone)

	c := start(t, env, "run") // the stream uses TLS, too
	c.await(t, `"streaming"`)
	secret, err := os.ReadFile(env["CDC_RELAY_DATABASE_URL_FILE"])
	must(t, err)
	deliveries, err := channel.Consume(queue, "", true, false, false, false, nil)
	must(t, err)
	conn, err := pgx.Connect(t.Context(), strings.TrimSpace(string(secret)))
	must(t, err)
	defer conn.Close(t.Context())
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('secured', '{"order_id": 42}')`)
	select {
	case d := <-deliveries:
		if string(d.Body) != `{"order_id": 42}` {
			t.Errorf("got %s", d.Body)
		}
	case <-t.Context().Done():
	}
	c.stopsWell(t)
}
