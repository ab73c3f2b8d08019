package main

import (
	"net"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/secret"
	"github.com/cdc-relay/cdc-relay/test/services"
)

const (
	someDatabase = "postgres://relay:s3cr3t@127.0.0.1:1/shop"
	someBroker   = "amqp://relay:s3cr3t@127.0.0.1:1/"
)

// wantUsage expects these lines on the standard error, and exit code 2.
func wantUsage(t *testing.T, r result, lines string) {
	t.Helper()
	want(t, r, exitUsage)
	wanted := "cdc-relay: " + strings.ReplaceAll(lines, "\n", "\ncdc-relay: ")
	got, _, _ := strings.Cut(strings.TrimSuffix(r.stderr, "\n"), "\n  hint: export ") // see TestMissingURLsAreNamedWithALineToPaste
	if got != wanted {
		t.Errorf("got  %s\nwant %s", got, wanted)
	}
}

func bothServers() environment {
	return environment{"CDC_RELAY_DATABASE_URL": someDatabase, "CDC_RELAY_AMQP_URL": someBroker}
}

func TestWrongUsageIsOneLineAndExitCode2(t *testing.T) {
	folder := t.TempDir()
	for _, test := range []struct{ args, line string }{
		{"", "no command given, want one of setup, check, config, adopt, teardown, run, drain, stats, console, list, explain, keys, resend, delete, demo, completion"},
		{"config", "config: no command given, want one of show, validate"},
		{"rn", `unknown command "rn", did you mean "run"?`},
		{"frobnicate", `unknown command "frobnicate", want one of setup, check, config, adopt, teardown, run, drain, stats, console, list, explain, keys, resend, delete, demo, completion`},
		{"config sho", `config: unknown command "sho", did you mean "show"?`},
		{"run --databse-url x", "run: unknown flag --databse-url, did you mean --database-url?"},
		{"run --xyzzy", "run: unknown flag --xyzzy, see cdc-relay run --help"},
		{"--xyzzy", "unknown flag --xyzzy, see cdc-relay --help"},
		{"config show --tabel x", "config show: unknown flag --tabel, did you mean --table?"},
		{"list 7", `list: unexpected argument "7"`},
		{"list --state claimed", `--state: "claimed": want waiting, due, retrying, scheduled, blocked, expired, locked, newer_version, not_deleted, dead or published`},
		{"list --id 3 --state due", "list: --id finds a message in any state: leave out the other filters"},
		{"list --id 3 --reason nack", "list: --id finds a message in any state: leave out the other filters"},
		{"resend", "resend: say which: an ID, or a state, for example --state dead"},
		{"resend 1 --reason nack", "resend: say which: an ID, or a state, for example --state dead"},
		{"resend --state dead", "resend: say which: an ID, filters such as --routing-key, or --all"},
		{"resend --state dead 1 --all", "resend: --all and a filter exclude each other"},
		{"resend --state due --all", `--state: "due": want dead, retrying or published`},
		{"resend 1 --to-exchange x", "resend: --to-exchange is for published messages: add --state published"},
		{"resend --state dead --all --rate 3", "resend: --rate is for published messages: add --state published"},
		{"delete --state published --all", `--state: "published": want waiting, due, retrying, scheduled, blocked, expired, newer_version or dead`},
		{"delete --all", "delete: say which: an ID, or a state, for example --state dead"},
		{"--config x.yml run", "flags go after the command: cdc-relay COMMAND --config"},
		{"run --table", "run: --table needs a value"},
		{"run now", `run: unexpected argument "now"`},
		{"setup", "set --database-url or CDC_RELAY_DATABASE_URL"},
		{"run --database-url " + someDatabase, "set --amqp-url or CDC_RELAY_AMQP_URL"},
		{"demo --database-url " + someDatabase, "set --amqp-url or CDC_RELAY_AMQP_URL"},
		{"setup --database-url nonsense", "--database-url: neither a URL, postgres://user:password@host:5432/database, nor key=value words"},
		{"setup --database-url mysql://localhost/x", "--database-url: want a URL that begins with postgres:// or postgresql://: the outbox is in Postgres, and mysql:// is another server"},
		{"setup --database-url postgres://localhost/x?sslmode=perhaps", "--database-url: wrong value for sslmode"},
		{"setup --database-url postgres://localhost/x?sslmode=verify-full&connect_timeout=abc", "--database-url: wrong value for connect_timeout"},
		{"setup --database-url postgres://localhost/x?sslmode=verify-full&sslrootcert=/no/ca.pem", "--database-url: wrong value for sslrootcert"},
		{"setup --database-url postgres://localhost/x?sslmode=require&sslcert=/no/c.pem&sslkey=/no/k.pem", "--database-url: wrong value for sslkey"},
		{"setup --database-url postgres://localhost/x?sslmode=require&target_session_attrs=rw", "--database-url: wrong value for target_session_attrs"},
		{"setup --database-url postgres://localhost/x?pool_max_conns=4", "--database-url: parameter pool_max_conns is not supported: leave it out, the pool has a fixed size"},
		{"setup --database-url postgres://localhost/x?gssencmode=disable", "--database-url: parameter gssencmode is not supported: leave it out"},
		{"setup --database-url postgres://localhost/x?schema=shop", "--database-url: parameter schema is unknown; a setting of the server goes into options: options=-c%20schema%3DVALUE in a URL"},
		{"run --amqp-url amqp://localhost/?hearbeat=5", "--amqp-url: parameter hearbeat is unknown; known are auth_mechanism, cacertfile, certfile, channel_max, connection_timeout, heartbeat, keyfile, server_name_indication"},
		{"run --amqp-url amqp://localhost:port", "--amqp-url: not a URL of the form amqp://user:password@host:5672/vhost; " + secret.Encode},
		{"setup --table a.b.c", `--table: table name "a.b.c": want name or schema.name`},
		{"setup --table " + strings.Repeat("t", 52), `--table: table name "` + strings.Repeat("t", 52) + `": "` + strings.Repeat("t", 52) + `" is longer than 51 bytes, and the dead-letter table is named after it`},
		{"run --mode push", `--mode: "push": want auto or poll`},
		{"run --publisher kafka", `--publisher: "kafka": want amqp, stdout or exec`},
		{"run --publisher exec --database-url " + someDatabase, "--publisher exec: write the handler after --, such as: cdc-relay run --publisher exec -- ./handler"},
		{"run --publisher stdout --database-url " + someDatabase + " -- x", `run: unexpected argument "x"`},
		{"run --on-dead-letter stop", `--on-dead-letter: "stop": want continue or block`},
		{"run --database-url " + someDatabase + " --amqp-url amqp://localhost --header-columns tenant,payload", "--header-columns: payload is a column of the relay; want columns of the application"},
		{"run --database-url " + someDatabase + " --amqp-url amqp://localhost --header-columns tenant,", `--header-columns "tenant,": want names of columns, separated by commas`},
		{"run --on-expired keep", `--on-expired: "keep": want dead-letter or drop`},
		{"run --log-level loud", `--log-level: "loud": want debug, info, warn or error`},
		{"run --log-format xml", `--log-format: "xml": want auto, text or json`},
		{"run --max-in-flight many", `--max-in-flight: "many": want a whole number`},
		{"run --poll-interval 5", `--poll-interval: "5": want a duration with its unit, such as 500ms, 10s, 5m, 1h or 7d`},
		{"run --http-addr 9464", `--http-addr: "9464": want host:port, such as 127.0.0.1:9464`},
		{"run --http-addr localhost:http", `--http-addr: "localhost:http": port "http" is not a number from 0 to 65535`},
		{"run --exchange " + strings.Repeat("x", 256), "--exchange: want at most 255 bytes, not 256"},
		{"demo --rate 0", `--rate: "0": want a number from 0.1 to 1000`},
		{"demo --rate NaN", `--rate: "NaN": want a number from 0.1 to 1000`},
		{"demo --count 0", `--count: 0: want 1 to 1000000000`},
		{"teardown --yes=perhaps", `--yes: "perhaps": want true or false`},
		{"run --config /nowhere/x.yml", "--config: open /nowhere/x.yml: no such file or directory"},
		{"run --slot Big --database-url " + someDatabase, `--slot "Big": a slot name has 1 to 63 characters of a-z, 0-9 and _`},
		{"run --max-in-flight 0 --max-retries -1 --database-url " + someDatabase, "--max-retries: \"-1\": want 0 to 1000, or unlimited\n--max-in-flight 0: want 1 to 100000"},
		{"run --max-retries 1001 --database-url " + someDatabase, "--max-retries 1001: want 0 to 1000, or unlimited"},
		{"run --max-retries 99999999999999999999", `--max-retries: "99999999999999999999": want 0 to 1000, or unlimited`},
		{"run --send-timeout 0s --database-url " + someDatabase, "--send-timeout 0s: want at least 100ms"},
		{"check --management-url relay:s3cr3t@localhost", "--management-url: want a URL that begins with http:// or https://; " + secret.Encode},
		{"explain 7 --tabel x", "explain: unknown flag --tabel, did you mean --table?"},
		{"explain -", `explain: "-": want the id of a row, such as 42, or a message_id, such as 5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52`},
		{"explain 42 -", "explain: want one ID: that of a row, or a message_id"},
		{"run --publisher stdout --http-addr= --liveness-file " + folder, "--liveness-file " + folder + ": is a directory or a device, want the name of a file"},
		{"run --publisher stdout --events-exchange x", "--events-exchange needs --publisher amqp"},
		{"help frobnicate", "No help topic for 'frobnicate'"},
	} {
		t.Run(test.args, func(t *testing.T) {
			env := bothServers()
			if strings.Contains(test.line, "set --") {
				env = nil
			}
			wantUsage(t, cdcRelay(t, env, strings.Fields(test.args)...), test.line)
		})
	}
}

// Once the line is typed, the settings are complete.
func TestMissingURLsAreNamedWithALineToPaste(t *testing.T) {
	const database, broker = "CDC_RELAY_DATABASE_URL=postgres://user:password@localhost:5432/shop", "CDC_RELAY_AMQP_URL=amqp://user:password@localhost:5672/"
	for args, hint := range map[string]string{
		"run": database + " " + broker, "drain": database + " " + broker, "check": database + " " + broker, "config validate": database + " " + broker,
		"demo": database + " " + broker, "setup": database, "stats": database, "list": database, "check --publisher stdout": database,
		"run --database-url " + someDatabase: broker,
	} {
		r := cdcRelay(t, nil, strings.Fields(args)...)
		want(t, r, exitUsage)
		if !strings.HasSuffix(r.stderr, "\n  hint: export "+hint+"\n") {
			t.Errorf("%s: want the hint %s:\n%s", args, hint, r.stderr)
		}
	}
}

func TestPasswordsAreNeverShown(t *testing.T) {
	const password = "s3cr3t"
	hosts := "127.0.0.1:1/x"
	for _, url := range []string{
		"://u:s3cr3t@" + hosts, "://u:s3cr3t@", "://u:s3cr3t%zz@" + hosts, "://u:s3cr3t/x@" + hosts,
		"://u:s3cr3t#x@" + hosts, "://u:s3cr3t?x@" + hosts, "://u:s3cr3t x@" + hosts, "://u:x@s3cr3t@" + hosts,
		"://u:1/s3cr3t@" + hosts, "://u:1?s3cr3t@" + hosts, "://u:1#s3cr3t@" + hosts, "://u:x@s3cr3t/y#z@" + hosts, "://u:x@y/s3cr3t@" + hosts,
		"://u:s3cr3t@[::1", "://u:s3cr3t@127.0.0.1:port/x", "://u:1:s3cr3t@" + hosts, "://:s3cr3t@" + hosts,
	} {
		for _, args := range [][]string{
			{"setup", "--database-url", "postgres" + url},
			{"setup", "--database-url", "postgres" + url + "?sslmode=s3cr3t"},
			{"setup", "--database-url", "postgresql" + url},
			{"run", "--amqp-url", "amqp" + url},
			{"run", "--amqp-url", "amqps" + url},
			{"demo", "--database-url", "postgres://u:s3cr3t@127.0.0.1:1/x", "--amqp-url", "amqp" + url},
		} {
			r := cdcRelay(t, nil, args...)
			if r.code == exitDone || strings.Contains(r.stdout+r.stderr, password) {
				t.Errorf("%q: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
			}
		}
	}
	for _, words := range []string{
		"host=127.0.0.1 port=1 password=s3cr3t", "host=127.0.0.1 port=1 password='s3cr3t x'", "password=s3cr3t port=x", "host=127.0.0.1 port=1 password = s3cr3t sslmode=x",
		"password='s3cr3t", "password=s3cr3t nonsense",
	} {
		r := cdcRelay(t, nil, "setup", "--database-url", words)
		if r.code == exitDone || strings.Contains(r.stdout+r.stderr, password) {
			t.Errorf("%q: exit code %d\n%s%s", words, r.code, r.stdout, r.stderr)
		}
	}
}

func TestRedactChangesOnlyPasswords(t *testing.T) {
	for _, test := range [][2]string{
		{"dial amqp://u:p@h:5672/v: refused", "dial amqp://u:***@h:5672/v: refused"},
		{"a postgres://u:p@q@h/d b amqp://x:y@z", "a postgres://u:***@h/d b amqp://x:***@z"},
		{"no password: http://h:1/x", "no password: http://h:1/x"},
		{"host=h password='a b' user=u", "host=h password=*** user=u"},
		{`host=h PASSWORD=a\ b user=u`, "host=h PASSWORD=*** user=u"},
		{"password authentication failed", "password authentication failed"},
		{"an example: amqp://user:password@host/", "an example: amqp://user:password@host/"},
		{"amqp://user:password@1@host/", "amqp://user:***@host/"},
		{"Authorization: Bearer abc.def", "Authorization: Bearer ***"},
		{"headers authorization=Basic%20dXNlcg==,x=1", "headers authorization=Basic%20***,x=1"},
		{`{"Authorization":"Bearer sekrit"}`, `{"Authorization":"Bearer ***"}`},
		{`\"authorization\":\"sekrit\"`, `\"authorization\":\"***\"`},
		{"map[Authorization:[Bearer sekrit]]", "map[Authorization:[Bearer ***]]"},
		{"Authorization Bearer sekrit", "Authorization Bearer ***"},
		{"token bearer eyJ0.e30.x-y", "token bearer ***"},
		{"authorization failed: a bearer token is needed", "authorization failed: a bearer token is needed"},
	} {
		if got := string(show.Redact([]byte(test[0]))); got != test[1] {
			t.Errorf("%q: got %q, want %q", test[0], got, test[1])
		}
	}
}

// A port of RabbitMQ does not speak TLS, but with sslmode=prefer that is not the fault.
func TestAPortWithoutPostgresHasAHint(t *testing.T) {
	address := services.Serve(t, func(client net.Conn) {
		_, _ = client.Read(make([]byte, 8))
		_, _ = client.Write([]byte("AMQP\x00\x00\x09\x01"))
	})
	for mode, hint := range map[string]string{"prefer": "hint: pg_isready -h 127.0.0.1", "allow": "hint: pg_isready -h 127.0.0.1", "require": "this server has no TLS"} {
		r := cdcRelay(t, nil, "setup", "--database-url", "postgres://u@"+address+"/d?sslmode="+mode)
		want(t, r, exitFailed)
		if !strings.Contains(r.stderr, hint) {
			t.Errorf("%s: got %s", mode, r.stderr)
		}
	}
}
