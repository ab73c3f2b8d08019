<?php // PDO
$url = parse_url(getenv('DATABASE_URL'));
$pdo = new PDO("pgsql:host={$url['host']};port={$url['port']};dbname=" . ltrim($url['path'], '/'), urldecode($url['user']), urldecode($url['pass'] ?? ''));

function placeOrder(PDO $pdo, int $orderId): void
{
    $pdo->prepare("INSERT INTO orders (id, customer) VALUES (?, 'acme')")->execute([$orderId]);
    $pdo->prepare('INSERT INTO outbox (routing_key, payload) VALUES (?, ?)')
        ->execute(['orders', json_encode(['order_id' => $orderId, 'customer' => 'acme'])]);
}

$pdo->beginTransaction();
placeOrder($pdo, 42);
$pdo->commit();

$pdo->beginTransaction();
placeOrder($pdo, 43);
$pdo->rollBack(); // no order is stored and no message is sent
