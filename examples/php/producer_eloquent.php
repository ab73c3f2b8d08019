<?php // Eloquent, without the rest of Laravel
foreach (['vendor/autoload.php', 'Illuminate/Database/autoload.php'] as $file) {
    if (stream_resolve_include_path($file)) {
        require_once $file; // Composer's, or that of Debian's php-illuminate-database
        break;
    }
}

use Illuminate\Database\Capsule\Manager;
use Illuminate\Database\Eloquent\Model;

$url = parse_url(getenv('DATABASE_URL'));
$manager = new Manager();
$manager->addConnection(['driver' => 'pgsql', 'host' => $url['host'], 'port' => $url['port'], 'database' => ltrim($url['path'], '/'),
    'username' => urldecode($url['user']), 'password' => urldecode($url['pass'] ?? '')]);
$manager->bootEloquent();

class Order extends Model
{
    public $timestamps = false;
    public $incrementing = false;
    protected $guarded = [];
}

/** $incrementing = false, since a generated key makes Eloquent send INSERT … RETURNING id, which needs SELECT (id). */
class Outbox extends Model
{
    public $timestamps = false;
    public $incrementing = false;
    protected $table = 'outbox';
    protected $guarded = [];
    protected $casts = ['payload' => 'array'];
}

function placeOrder(int $orderId): void
{
    Order::create(['id' => $orderId, 'customer' => 'acme']);
    Outbox::create(['routing_key' => 'orders', 'payload' => ['order_id' => $orderId, 'customer' => 'acme']]);
}

$connection = $manager->getConnection();
$connection->transaction(fn () => placeOrder(42));

$connection->beginTransaction();
placeOrder(43);
$connection->rollBack(); // no order is stored and no message is sent
