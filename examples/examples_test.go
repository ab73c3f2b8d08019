// Package examples_test runs every example on real servers. scripts/examples installs what they need and runs it.
package examples_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/tabletest"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

// example runs in the folder that its name begins with. The command needs succeeds if its programs are installed.
type example struct {
	name, needs string
	run         func(*shop)
}

// stack is a producer, and a command that publishes two messages and consumes them.
func stack(name, needs, producer, deliver string) example {
	return example{name, needs, func(e *shop) { e.produce(producer, deliver) }}
}

const (
	drain      = "cdc-relay drain && "
	debianJars = "/usr/share/java/postgresql.jar:/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar"
	springJars = ":/usr/share/java/spring3-jdbc.jar:/usr/share/java/spring3-transaction.jar:/usr/share/java/spring3-beans.jar:/usr/share/java/spring3-core.jar:/usr/share/java/commons-logging.jar"
	// rustBuild uses the crates of Debian's packages.
	rustBuild = "cargo build --quiet --offline --config debian.toml && "
)

func stacks() []example {
	python := func(name, module string) example {
		return stack("python/"+name, "/usr/bin/python3 -c 'import psycopg, pika, "+module+"'", "/usr/bin/python3 producer_"+name+".py", drain+"/usr/bin/python3 consumer.py 2")
	}
	node := func(name string) example {
		return stack("node/"+name, "test -d node_modules", "node producer_"+name+".mjs", drain+"node consumer.mjs 2")
	}
	php := func(name, needs string) example {
		return stack("php/"+name, needs+" && test -e /usr/share/php/PhpAmqpLib/autoload.php", "php producer_"+name+".php", drain+"php consumer.php 2")
	}
	java := func(name, producer, jars string) example {
		path := debianJars + jars
		needs := "javac -version && ls " + strings.ReplaceAll(path, ":", " ")
		return stack("java/"+name, needs, "java -cp "+path+" "+producer, drain+"java -cp "+path+" Consumer.java 2")
	}
	golang := func(name string) example {
		return stack("go/"+name, "go version", "go run ./"+name, drain+"go run ./consumer 2")
	}
	return []example{
		stack("psql/psql", "psql --version", `psql -qX "$DATABASE_URL" -f producer.sql`, `cdc-relay drain --publisher stdout | psql -qX "$DATABASE_URL" -f consumer.sql`),
		python("psycopg", "psycopg"), python("sqlalchemy", "sqlalchemy, psycopg2"), python("django", "django, psycopg2"),
		node("pg"), node("typeorm"), node("sequelize"), node("drizzle"),
		java("jdbc", "Producer.java", ""), java("spring", "SpringProducer.java", springJars),
		stack("ruby/activerecord", "ruby -e 'require \"active_record\"; require \"pg\"; require \"bunny\"'", "ruby producer.rb", drain+"ruby consumer.rb 2"),
		php("pdo", "php -m | grep -q pdo_pgsql"), php("eloquent", "test -e /usr/share/php/Illuminate/Database/autoload.php"),
		golang("pgx"), golang("databasesql"), golang("gorm"),
		stack("rust/tokio-postgres", "cargo --version && ls -d /usr/share/cargo/registry/tokio-postgres-*", rustBuild+"target/debug/producer", "cdc-relay drain --publisher exec -- target/debug/consumer"),
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
	run := func(all []example, prepare func(*shop)) {
		for _, one := range all {
			t.Run(one.name, func(t *testing.T) {
				t.Parallel()
				e := &shop{Tables: &tabletest.Tables{TB: t}, env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))}
				e.folder, _, _ = strings.Cut(one.name, "/")
				if out, err := e.command(one.needs); err != nil {
					t.Skipf("not installed: %v\n%s", err, out)
				}
				e.servers()
				prepare(e)
				one.run(e)
			})
		}
	}
	run(slices.Concat(stacks(), handlers(), trips(), frameworks()), (*shop).setup)
	run(slices.Concat(tools(), walks()), func(*shop) {})
}

// shop is a database and a virtual host for one example.
type shop struct {
	*tabletest.Tables
	// folder is where commands run.
	folder       string
	env          []string
	role, broker string
}

func (e *shop) servers() {
	e.URL = services.Database(e)
	e.Conn = tabletest.Connect(e, e.URL)
	e.broker = services.VHost(e)
	e.env = append(e.env, "AMQP_URL="+e.broker, "CDC_RELAY_AMQP_URL="+e.broker, "CDC_RELAY_DATABASE_URL="+e.URL, "CDC_RELAY_MODE=poll")
}

// setup creates the tables, a role of the application, and the queue.
func (e *shop) setup() {
	role, app := e.Role("")
	e.role = role
	e.do("cdc-relay setup")
	schema, err := os.ReadFile("schema.sql")
	must(e, err)
	e.Exec(strings.ReplaceAll(string(schema), `:"app"`, role))
	// The examples also work with setup --app-insert-only.
	e.Exec("REVOKE SELECT (id, message_id) ON outbox FROM " + role + "; REVOKE USAGE ON SEQUENCE outbox_id_seq FROM " + role)
	e.env = append(e.env, "DATABASE_URL="+app)
	channel, err := services.DialAMQP(e, e.broker).Channel()
	must(e, err)
	_, err = channel.QueueDeclare("orders", true, false, false, false, nil)
	must(e, err)
}

// produce publishes the message of a producer twice, as after a crash of a relay, and consumes both.
func (e *shop) produce(producer, deliver string) {
	e.do(producer)
	e.want("SELECT coalesce(string_agg(routing_key || (payload ->> 'order_id') || ' ' || (payload ->> 'customer'), ','), '') FROM outbox", "orders42 acme")
	e.want("SELECT string_agg(id::text, ',') FROM orders", "42")
	e.Exec("INSERT INTO outbox (message_id, routing_key, payload) SELECT message_id, routing_key, payload FROM outbox")
	e.do(deliver)
	e.want("SELECT count(*)::text FROM outbox", "0")
	e.want("SELECT count(*)::text FROM inbox", "1")
	e.want("SELECT string_agg(order_id::text, ',') FROM parcels", "42")
	if consumer, ok := strings.CutPrefix(deliver, drain); ok {
		e.failingWork(strings.TrimSuffix(consumer, "2") + "1")
	}
}

// failingWork gives a message to a consumer that cannot do its work. It must end with an error, and the message stays
// for the next consumer.
func (e *shop) failingWork(consumer string) {
	const spaces = "json_build_object('order_id', 43)" // {"order_id" : 43}
	e.Exec("INSERT INTO outbox (routing_key, payload) VALUES ('orders', " + spaces + ")")
	e.Exec("ALTER TABLE parcels RENAME TO away")
	e.do("cdc-relay drain")
	if out, err := e.command(consumer); err == nil || !strings.Contains(out, "parcels") {
		e.Errorf("with a message that cannot be handled, %s: %v\n%s", consumer, err, out)
	}
	e.want("SELECT count(*)::text FROM inbox", "1")
	e.Exec("ALTER TABLE away RENAME TO parcels")
	e.do(consumer)
	e.want("SELECT string_agg(order_id::text, ',' ORDER BY order_id) FROM parcels", "42,43")
}

func (e *shop) command(line string) (string, error) {
	ctx, cancel := context.WithTimeout(e.Context(), await.Hang())
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = e.folder, e.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e *shop) do(line string) {
	e.Helper()
	if out, err := e.command(line); err != nil {
		e.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func (e *shop) want(query, want string) {
	e.Helper()
	if got := tabletest.One[any](e, query); fmt.Sprint(got) != want {
		e.Errorf("%s: got %v, want %q", query, got, want)
	}
}
