package examples_test

import (
	"os"
	"strings"
	"testing"
)

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
