// Package examples_test runs every example on real servers. scripts/examples installs what they need and runs it.
package examples_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// frameworks are consumers of the messages in docs/frameworks.md. Those in PHP have the code that reads a message, and
// not the transport, which would need extensions.
func frameworks() []example {
	const php = "test -e /usr/share/php/PhpAmqpLib/autoload.php && php -m | grep -q pdo_pgsql && test -e /usr/share/php/"
	run := func(heading, consumer string) func(*shop) {
		return func(e *shop) { e.receive(heading, consumer) }
	}
	return []example{
		{"node/nest", "test -d node_modules/@nestjs/microservices", run("NestJS", "node consumer_nest.mjs 2")},
		{"php/symfony", php + "Symfony/Component/Messenger/autoload.php", run("Symfony Messenger", phpProgram(symfony))},
		{"php/laravel", php + "Illuminate/Queue/autoload.php", run("Laravel", phpProgram(laravel))},
	}
}

// receive inserts the message of the page, publishes it twice, and lets a consumer handle both.
func (e *shop) receive(heading, consumer string) {
	e.Exec(documented(e, "frameworks.md", heading, "sql"))
	e.Exec("INSERT INTO outbox (message_id, routing_key, payload, headers) SELECT message_id, routing_key, payload, headers FROM outbox")
	e.do("cdc-relay drain")
	e.do(consumer)
	e.want("SELECT count(*)::text FROM inbox", "1")
	e.want("SELECT string_agg(order_id::text, ',') FROM parcels", "42")
}

// documented returns the first code block in that language below the heading of a page of docs/.
func documented(t testing.TB, page, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	must(t, err)
	_, section, _ := strings.Cut(string(text), "# "+heading+"\n")
	_, section, _ = strings.Cut(section, "```"+language+"\n")
	code, _, found := strings.Cut(section, "```")
	if !found {
		t.Fatalf("docs/%s has no %s for %s", page, language, heading)
	}
	return code
}

func phpProgram(read string) string {
	return "php <<'PROGRAM'\n" + phpConsumer + read + "\nfor ($left = 2; $left > 0; $left--) read($channel->basic_get('orders', true));\n}\nPROGRAM"
}

const (
	phpConsumer = `<?php
namespace { require 'PhpAmqpLib/autoload.php';
$url = parse_url(getenv('AMQP_URL'));
$broker = new PhpAmqpLib\Connection\AMQPStreamConnection($url['host'], $url['port'], $url['user'], $url['pass'], urldecode(substr($url['path'], 1)));
$channel = $broker->channel();
$url = parse_url(getenv('DATABASE_URL'));
$pdo = new PDO("pgsql:host={$url['host']};port={$url['port']};dbname=" . ltrim($url['path'], '/'), $url['user'], $url['pass']);
function handle($message, $order_id) {
    global $pdo;
    $inbox = $pdo->prepare('INSERT INTO inbox (message_id) VALUES (?) ON CONFLICT DO NOTHING');
    $inbox->execute([$message->get('message_id')]);
    if ($inbox->rowCount() === 1) $pdo->prepare('INSERT INTO parcels (order_id) VALUES (?)')->execute([$order_id]);
} }
`
	symfony = `
namespace App\Message { class OrderCreated { public int $order_id; } }
namespace {
foreach (['Messenger', 'Serializer', 'PropertyAccess'] as $component) require "Symfony/Component/$component/autoload.php";
use Symfony\Component\Messenger\Transport\Serialization\Serializer;
function read($message) {
    $json = new Symfony\Component\Serializer\Serializer([new Symfony\Component\Serializer\Normalizer\ObjectNormalizer()], [new Symfony\Component\Serializer\Encoder\JsonEncoder()]);
    $headers = $message->get('application_headers')->getNativeData();
    $envelope = (new Serializer($json))->decode(['body' => $message->getBody(), 'headers' => $headers]);
    handle($message, $envelope->getMessage()->order_id);
}`
	laravel = `
namespace App\Jobs { class OrderCreated { public function handle($job, array $data) { handle($job->message, $data['order_id']); } } }
namespace {
require 'Illuminate/Queue/autoload.php';
class Job extends Illuminate\Queue\Jobs\Job {
    public function __construct(public $message) { $this->container = new Illuminate\Container\Container(); }
    public function getJobId() { return $this->message->get('message_id'); }
    public function getRawBody() { return $this->message->getBody(); }
}
function read($message) { (new Job($message))->fire(); }`
)

// tools run the file of docs/migrations.md, with the code of the page.
func tools() []example {
	const (
		alembic = `mkdir -p m/versions && printf '[alembic]\nscript_location = m\n' > alembic.ini && cat > m/versions/0001.py
cat > m/env.py <<'END'
import os
from alembic import context
from sqlalchemy import create_engine
with create_engine("postgresql" + os.environ["CDC_RELAY_DATABASE_URL"].removeprefix("postgres")).connect() as connection:
    context.configure(connection)
    with context.begin_transaction():
        context.run_migrations()
END
alembic upgrade head`
		django = `mkdir -p shop/migrations && touch shop/__init__.py shop/migrations/__init__.py && cat > shop/migrations/0001_outbox.py
/usr/bin/python3 - <<'END'
import os, urllib.parse, django
from django.conf import settings
from django.core.management import call_command
url = urllib.parse.urlparse(os.environ["CDC_RELAY_DATABASE_URL"])
database = dict(ENGINE="django.db.backends.postgresql", NAME=url.path[1:], USER=url.username, PASSWORD=url.password, HOST=url.hostname, PORT=url.port)
settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["shop"])
django.setup()
call_command("migrate")
END`
		liquibase = `cat > changelog.yaml && url=${CDC_RELAY_DATABASE_URL#*://} && login=${url%%@*} && bash "$NODE/node_modules/liquibase/dist/liquibase/liquibase" \
  --url="jdbc:postgresql://${url#*@}" --username="${login%%:*}" --password="${login#*:}" --changelog-file=changelog.yaml update`
		nodePgMigrate = `ln -s "$NODE/node_modules" . && bash -eu`
	)
	return []example{
		migrate("python/alembic", "alembic --version && /usr/bin/python3 -c 'import psycopg2'", alembic, "Alembic", "python"),
		migrate("python/django_migration", "/usr/bin/python3 -c 'import django, psycopg2'", django, "Django", "python"),
		migrate("node/liquibase", "java -version && test -d node_modules/liquibase", liquibase, "Liquibase", "yaml"),
		migrate("node/node-pg-migrate", "test -d node_modules/node-pg-migrate", nodePgMigrate, "node-pg-migrate", "sh"),
		migrate("psql/migration", "psql --version", `psql -qX1 -v ON_ERROR_STOP=1 "$CDC_RELAY_DATABASE_URL" -f outbox.sql`, "", ""),
	}
}

// migrate writes the file of the page, and lets a tool run it. The commands read the code below a heading of the page.
func migrate(name, needs, commands, heading, language string) example {
	return example{name, needs, func(e *shop) {
		node, err := filepath.Abs("node")
		must(e, err)
		e.folder = e.TempDir()
		e.env = append(e.env, "NODE="+node, "DATABASE_URL="+e.URL)
		code := ""
		if heading != "" {
			code = documented(e, "migrations.md", heading, language)
		}
		e.do(documented(e, "migrations.md", "Tables in your own migrations", "sh"))
		e.do("{ " + commands + "\n} <<'CODE'\n" + code + "CODE")
		e.want("SELECT version::text FROM public.outbox_migrations", "1")
		e.do("cdc-relay setup | grep -x 'tables of public.outbox: version 1, nothing to do'")
	}}
}
