package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/certs"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestErrorsNameSecretFilesWithoutTheirContent(t *testing.T) {
	database, nonsense := writeFile(t, "database", someDatabase), writeFile(t, "nonsense", "s3cr3t\n")
	for _, test := range []struct {
		env  environment
		args string
		line string
	}{
		{environment{"CDC_RELAY_AMQP_URL": someBroker}, "run --amqp-url-file " + database, "--amqp-url-file " + database + ": want a URL"},
		{nil, "setup --database-url-file /nowhere/url", "--database-url-file: open /nowhere/url: no such file or directory"},
		{nil, "setup --database-url-file " + nonsense, "--database-url-file " + nonsense + ": neither a URL"},
		{nil, "setup --database-url-file " + writeFile(t, "empty", "\n"), ": is empty"},
		{nil, "run --amqp-url-file " + database, "--amqp-url-file " + database + ": want a URL that begins with amqp://"},
	} {
		r := cdcRelay(t, test.env, strings.Fields(test.args)...)
		want(t, r, exitUsage)
		if !strings.Contains(r.stderr, test.line) || strings.Contains(r.stderr, "s3cr3t") {
			t.Errorf("%s:\ngot  %swant %s", test.args, r.stderr, test.line)
		}
	}
}

// publish/amqp uses certificates that are right.
func TestWrongCertificatesOfTheURLAreNamed(t *testing.T) {
	authority := certs.NewAuthority(t)
	authority.Issue("client")
	ca, cert, key := authority.File("ca.pem"), authority.File("client.pem"), authority.File("client.key")
	broker := "amqps://relay:s3cr3t%40@localhost:5671/%2Fshop?heartbeat=5"
	for _, test := range []struct{ url, line string }{
		{broker + "&certfile=" + cert, "--amqp-url: certfile and keyfile: want both or none"},
		{broker + "&cacertfile=" + key, "--amqp-url: cacertfile: " + key + ": contains no certificate in PEM form"},
		{broker + "&cacertfile=/nowhere", "--amqp-url: cacertfile: open /nowhere: no such file or directory"},
	} {
		env := environment{"CDC_RELAY_DATABASE_URL": someDatabase}
		wantUsage(t, cdcRelay(t, env, "run", "--amqp-url", test.url), test.line)
	}
	r := cdcRelay(t, nil, "run", "--amqp-url", broker+"&certfile="+ca+"&keyfile="+key)
	want(t, r, exitUsage)
	wantTexts(t, r.stderr, "private key does not match")
}

func TestFilesOpenToEveryUserCauseAWarning(t *testing.T) {
	database, key := writeFile(t, "database", someDatabase), writeFile(t, "key.pem", "")
	amqp := writeFile(t, "amqp", "amqps://guest:guest@localhost:1/?keyfile="+key)
	passwords := writeFile(t, "pgpass", "*:*:*:*:s3cr3t")
	settings := writeFile(t, "relay.yml", "database-url-file: "+database+"\namqp-url-file: "+amqp+"\n")
	open := writeFile(t, "open.yml", "database-url: postgres://relay:s3cr3t@localhost:1/x\n")
	token := writeFile(t, "a token", "0123456789abcdef")
	env := environment{"PGPASSFILE": passwords}
	run := func(args ...string) string {
		t.Helper()
		return cdcRelay(t, env, args...).stderr
	}
	all := func() string {
		t.Helper()
		return run("check", "--config", settings) + run("setup", "--config", open) +
			run("console", "--config", open, "--token-file", token, "--console-listen", "256.0.0.1:0", "--log-format", "text")
	}
	if says := all(); strings.Contains(says, "every user") {
		t.Errorf("of files of mode 600: %s", says)
	}
	for _, c := range []struct {
		mode  os.FileMode
		files []string
		may   string
	}{
		{0o602, []string{database, amqp, key, passwords, settings, open, token}, "change"},
		{0o606, []string{database, amqp, key, passwords, settings, open, token}, "change"},
		{0o644, []string{database, amqp, key, passwords, open, token}, "read"},
		{0o660, nil, ""},
	} {
		for _, file := range []string{database, amqp, key, passwords, settings, open, token} {
			must(t, os.Chmod(file, c.mode))
		}
		says := all()
		for _, file := range c.files {
			if !strings.Contains(says, "every user of this machine may "+c.may+" "+file) || !strings.Contains(says, "chmod 600 "+problem.ShellWord(file)) {
				t.Errorf("mode %o: nothing about %s in %s", c.mode, file, says)
			}
		}
		if n := strings.Count(says, "every user"); n < len(c.files) || len(c.files) == 0 && n > 0 {
			t.Errorf("mode %o: %d warnings in %s", c.mode, n, says)
		}
		if c.may == "read" && strings.Contains(says, settings) {
			t.Errorf("a file without a password: %s", says)
		}
	}
}

// A pipe, as <(…) of a shell names one, can be read only once. Its text is then used for all connections.
func TestASecretComesFromAPipe(t *testing.T) {
	pipe := func(text string) string {
		t.Helper()
		r, w, err := os.Pipe()
		must(t, err)
		t.Cleanup(func() { _ = r.Close() })
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		must(t, w.Close())
		return fmt.Sprintf("/dev/fd/%d", r.Fd())
	}
	cfg := resolved(t, nil, "--database-url-file", pipe(someDatabase+"\n"), "--amqp-url-file", pipe(someBroker+"\n"))
	for range 2 {
		if text, err := cfg.database().Read(); text != someDatabase || err != nil {
			t.Errorf("got %q, %v", text, err)
		}
		if text, err := cfg.rabbitmq.Read(); text != someBroker || err != nil {
			t.Errorf("got %q, %v", text, err)
		}
	}
}

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

// Postgres rejects a connection without a client certificate. publish/amqp tests that of RabbitMQ.
func TestTLSWithAClientCertificateToPostgres(t *testing.T) {
	t.Parallel()
	authority, stranger := certs.NewAuthority(t), certs.NewAuthority(t)
	authority.Issue("localhost")
	authority.Issue("relay")
	database := tlsPostgres(t, authority)
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
	env := environment{
		"CDC_RELAY_DATABASE_URL_FILE": with(authority, true), "CDC_RELAY_PUBLISHER": "stdout", "CDC_RELAY_HTTP_ADDR": "",
		"CDC_RELAY_DATABASE_URL": "", "CDC_RELAY_AMQP_URL": "", // remove those of this process
	}
	want(t, cdcRelay(t, env, "setup"), exitDone)
	want(t, cdcRelay(t, env, "check"), exitDone)
	c := start(t, env, "run", "--log-format", "json") // the stream uses TLS, too
	c.await(t, `"streaming"`)
	secret, err := os.ReadFile(env["CDC_RELAY_DATABASE_URL_FILE"])
	must(t, err)
	conn := tabletest.Connect(t, strings.TrimSpace(string(secret)))
	execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('secured', '{"order_id": 42}')`)
	await.Until(t, "the message is published", func() bool { return query[int](t, conn, "SELECT count(*) FROM outbox") == 0 })
	c.stopsWell(t)
}
