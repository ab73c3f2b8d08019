// Package examples_test runs every example on real servers. scripts/examples installs what they need and runs it.
package examples_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// stack is a producer with its consumer.
type stack struct {
	name string
	// needs succeeds if the stack is installed.
	needs, producer string
	// deliver publishes two messages and consumes them.
	deliver string
}

const (
	drain      = "cdc-relay drain && "
	debianJars = "/usr/share/java/postgresql.jar:/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar"
	springJars = ":/usr/share/java/spring3-jdbc.jar:/usr/share/java/spring3-transaction.jar:/usr/share/java/spring3-beans.jar:/usr/share/java/spring3-core.jar:/usr/share/java/commons-logging.jar"
	// rustBuild uses the crates of Debian's packages.
	rustBuild = "cargo build --quiet --offline --config debian.toml && "
)

func stacks() []stack {
	python := func(name, module string) stack {
		return stack{"python/" + name, "/usr/bin/python3 -c 'import psycopg, pika, " + module + "'", "/usr/bin/python3 producer_" + name + ".py", drain + "/usr/bin/python3 consumer.py 2"}
	}
	node := func(name string) stack {
		return stack{"node/" + name, "test -d node_modules", "node producer_" + name + ".mjs", drain + "node consumer.mjs 2"}
	}
	php := func(name, needs string) stack {
		return stack{"php/" + name, needs + " && test -e /usr/share/php/PhpAmqpLib/autoload.php", "php producer_" + name + ".php", drain + "php consumer.php 2"}
	}
	java := func(name, producer, jars string) stack {
		path := debianJars + jars
		needs := "javac -version && ls " + strings.ReplaceAll(path, ":", " ")
		return stack{"java/" + name, needs, "java -cp " + path + " " + producer, drain + "java -cp " + path + " Consumer.java 2"}
	}
	golang := func(name string) stack {
		return stack{"go/" + name, "go version", "go run ./" + name, drain + "go run ./consumer 2"}
	}
	return []stack{
		{"psql/psql", "psql --version", `psql -qX "$DATABASE_URL" -f producer.sql`, `cdc-relay drain --publisher stdout | psql -qX "$DATABASE_URL" -f consumer.sql`},
		python("psycopg", "psycopg"), python("sqlalchemy", "sqlalchemy, psycopg2"), python("django", "django, psycopg2"),
		node("pg"), node("typeorm"), node("sequelize"), node("drizzle"),
		java("jdbc", "Producer.java", ""), java("spring", "SpringProducer.java", springJars),
		{"ruby/activerecord", "ruby -e 'require \"active_record\"; require \"pg\"; require \"bunny\"'", "ruby producer.rb", drain + "ruby consumer.rb 2"},
		php("pdo", "php -m | grep -q pdo_pgsql"), php("eloquent", "test -e /usr/share/php/Illuminate/Database/autoload.php"),
		golang("pgx"), golang("databasesql"), golang("gorm"),
		{"rust/tokio-postgres", "cargo --version && ls -d /usr/share/cargo/registry/tokio-postgres-*", rustBuild + "target/debug/producer", "cdc-relay drain --publisher exec -- target/debug/consumer"},
	}
}

func TestExamples(t *testing.T) {
	if os.Getenv("CDC_RELAY_EXAMPLES") == "" {
		t.Skip("they need many languages; to install and run them: scripts/examples")
	}
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../cmd/cdc-relay").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	all := slices.Concat(handlers(), trips(), frameworks())
	for _, s := range stacks() {
		all = append(all, example{s.name, s.needs, func(e *shop) { e.run(s) }})
	}
	for _, one := range all {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			one.run(newShop(t, one.name, one.needs, bin))
		})
	}
	others := tools()
	others["go/walk"], others["node/walk"] = walkGo, walkNode
	for name, run := range others {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, bin)
		})
	}
}

// shop is a database and a virtual host for one example.
type shop struct {
	t     *testing.T
	owner *pgx.Conn
	// folder is where commands run.
	folder string
	env    []string
	role   string
}

func newShop(t *testing.T, name, needs, bin string) *shop {
	folder, _, _ := strings.Cut(name, "/")
	e := &shop{t: t, folder: folder, env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))}
	e.installed(needs)
	role := services.Name(t)
	e.role = role
	app, broker := e.servers(role, "s3cr3t")
	e.exec("CREATE ROLE " + role + " LOGIN PASSWORD 's3cr3t'")
	t.Cleanup(func() { dropRole(t, e.owner, role) })
	e.do("cdc-relay setup")
	schema, err := os.ReadFile("schema.sql")
	must(t, err)
	e.exec(strings.ReplaceAll(string(schema), `:"app"`, role))
	// The examples also work with setup --app-insert-only.
	e.exec("REVOKE SELECT (id, message_id) ON outbox FROM " + role + "; REVOKE USAGE ON SEQUENCE outbox_id_seq FROM " + role)
	e.env = append(e.env, "DATABASE_URL="+app)
	declareQueue(t, broker)
	return e
}

// installed skips the test if a command fails.
func (e *shop) installed(needs string) {
	if out, err := e.command(needs); err != nil {
		e.t.Skipf("not installed: %v\n%s", err, out)
	}
}

// servers creates a database and a virtual host. It returns the database's URL for a role, which it does not create.
func (e *shop) servers(role, password string) (app, broker string) {
	database := services.Database(e.t)
	broker = services.VHost(e.t)
	var err error
	if e.owner, err = pgx.Connect(e.t.Context(), database); err != nil {
		e.t.Fatal(err)
	}
	e.env = append(e.env, "AMQP_URL="+broker, "CDC_RELAY_AMQP_URL="+broker, "CDC_RELAY_DATABASE_URL="+database, "CDC_RELAY_MODE=poll")
	u, err := url.Parse(database)
	must(e.t, err)
	u.User = url.UserPassword(role, password)
	return u.String(), broker
}

// run produces, publishes the message twice, as after a crash of a relay, and consumes both.
func (e *shop) run(s stack) {
	e.do(s.producer)
	e.want("SELECT coalesce(string_agg(routing_key || (payload ->> 'order_id') || ' ' || (payload ->> 'customer'), ','), '') FROM outbox", "orders42 acme")
	e.want("SELECT string_agg(id::text, ',') FROM orders", "42")
	e.exec("INSERT INTO outbox (message_id, routing_key, payload) SELECT message_id, routing_key, payload FROM outbox")
	e.do(s.deliver)
	e.want("SELECT count(*)::text FROM outbox", "0")
	e.want("SELECT count(*)::text FROM inbox", "1")
	e.want("SELECT string_agg(order_id::text, ',') FROM parcels", "42")
	if consumer, ok := strings.CutPrefix(s.deliver, drain); ok {
		e.failingWork(strings.TrimSuffix(consumer, "2") + "1")
	}
}

// failingWork gives a message to a consumer that cannot do its work. It must end with an error, and the message stays
// for the next consumer.
func (e *shop) failingWork(consumer string) {
	const spaces = "json_build_object('order_id', 43)" // {"order_id" : 43}
	e.exec("INSERT INTO outbox (routing_key, payload) VALUES ('orders', " + spaces + ")")
	e.exec("ALTER TABLE parcels RENAME TO away")
	e.do("cdc-relay drain")
	if out, err := e.command(consumer); err == nil || !strings.Contains(out, "parcels") {
		e.t.Errorf("with a message that cannot be handled, %s: %v\n%s", consumer, err, out)
	}
	e.want("SELECT count(*)::text FROM inbox", "1")
	e.exec("ALTER TABLE away RENAME TO parcels")
	e.do(consumer)
	e.want("SELECT string_agg(order_id::text, ',' ORDER BY order_id) FROM parcels", "42,43")
}

// command runs a shell line in the folder of the example.
func (e *shop) command(line string) (string, error) {
	ctx, cancel := context.WithTimeout(e.t.Context(), await.Hang())
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = e.folder, e.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e *shop) do(line string) {
	e.t.Helper()
	if out, err := e.command(line); err != nil {
		e.t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func (e *shop) exec(sql string) {
	e.t.Helper()
	if _, err := e.owner.Exec(e.t.Context(), sql); err != nil {
		e.t.Fatal(err)
	}
}

func (e *shop) want(query, want string) {
	e.t.Helper()
	var got *string
	must(e.t, e.owner.QueryRow(e.t.Context(), query).Scan(&got))
	if got == nil || *got != want {
		e.t.Errorf("%s: got %s, want %q", query, text(got), want)
	}
}

func text(s *string) string {
	if s == nil {
		return "null"
	}
	return fmt.Sprintf("%q", *s)
}

func declareQueue(t *testing.T, broker string) {
	t.Helper()
	conn, err := amqp.Dial(broker)
	must(t, err)
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err == nil {
		_, err = channel.QueueDeclare("orders", true, false, false, false, nil)
	}
	must(t, err)
}
