<?php // consumer.php COUNT: php-amqplib and PDO
foreach (['vendor/autoload.php', 'PhpAmqpLib/autoload.php'] as $file) {
    if (stream_resolve_include_path($file)) {
        require_once $file; // Composer's, or that of Debian's php-amqplib
        break;
    }
}

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;

$url = parse_url(getenv('DATABASE_URL'));
$pdo = new PDO("pgsql:host={$url['host']};port={$url['port']};dbname=" . ltrim($url['path'], '/'), urldecode($url['user']), urldecode($url['pass'] ?? ''));
$url = parse_url(getenv('AMQP_URL'));
$broker = new AMQPStreamConnection($url['host'], $url['port'], urldecode($url['user']), urldecode($url['pass']), urldecode(substr($url['path'] ?? '/%2F', 1)));
$channel = $broker->channel();
$channel->queue_declare('orders', false, true, false, false);
$channel->basic_qos(0, 10, false);
$left = (int) $argv[1];

$channel->basic_consume('orders', '', false, false, false, false, function (AMQPMessage $message) use ($pdo, &$left): void {
    $pdo->beginTransaction(); // the inbox and the work commit together
    $inbox = $pdo->prepare('INSERT INTO inbox (message_id) VALUES (?) ON CONFLICT DO NOTHING');
    $inbox->execute([$message->get('message_id')]);
    if ($inbox->rowCount() === 1) {
        $pdo->prepare('INSERT INTO parcels (order_id) VALUES (?)')->execute([json_decode($message->getBody(), true)['order_id']]);
    }
    $pdo->commit();
    $message->ack(); // after COMMIT: if it crashes before, the broker redelivers
    $left--;
});
while ($left > 0) {
    $channel->wait();
}
$channel->close();
$broker->close();
