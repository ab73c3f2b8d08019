package examples_test

import (
	"os"
	"strings"
)

// trip is a program that inserts a message with the grants of setup --app-role. WAY is the trap, for which Postgres
// denies the permission, or the way out, which README.md shows.
type trip struct{ name, needs, command, program, trap, way string }

const (
	jdbc = `class Trip { public static void main(String[] a) throws Exception {
  var url = java.net.URI.create(System.getenv("DATABASE_URL")); var user = url.getUserInfo().split(":");
  var sql = "INSERT INTO outbox (routing_key, payload) VALUES ('orders', '{\"order_id\": 42}')";
  try (var c = java.sql.DriverManager.getConnection("jdbc:postgresql://" + url.getAuthority().split("@")[1] + url.getPath(), user[0], user[1]);
       var statement = c.WAY) {
    statement.executeUpdate();
    statement.getGeneratedKeys().next();
  } } }`
	sequelize = `import { DataTypes, Sequelize } from 'sequelize'
const { UUID, UUIDV4, TEXT, JSON } = DataTypes
const sequelize = new Sequelize(process.env.DATABASE_URL, { logging: false })
const message_id = { type: UUID, primaryKey: true, defaultValue: UUIDV4 }
const Outbox = sequelize.define('Outbox', { message_id, routing_key: TEXT, payload: JSON }, { tableName: 'outbox', timestamps: false })
await Outbox.create({ routing_key: 'orders', payload: { order_id: 42 } }, { WAY })
await sequelize.close()`
	sequel = `require 'sequel'
DB = Sequel.connect(ENV['DATABASE_URL'])
class Outbox < Sequel::Model(WAY); end
raise 'no id' unless Outbox.create(routing_key: 'orders', payload: '{"order_id": 42}').message_id`
	doctrine = `<?php
require '/usr/share/php/Doctrine/ORM/autoload.php';
use Doctrine\ORM\Mapping as ORM;
#[ORM\Entity, ORM\Table(name: 'outbox')]
class Outbox {
    WAY
    #[ORM\Column] public string $routing_key = 'orders';
    #[ORM\Column(type: 'json')] public array $payload = ['order_id' => 42];
}
$config = new Doctrine\ORM\Configuration();
$config->setMetadataDriverImpl(new Doctrine\ORM\Mapping\Driver\AttributeDriver([]));
$config->setProxyDir(sys_get_temp_dir());
$config->setProxyNamespace('Proxies');
$entities = Doctrine\ORM\EntityManager::create(['driver' => 'pdo_pgsql', 'url' => getenv('DATABASE_URL')], $config);
$message = new Outbox();
if (property_exists($message, 'message_id')) $message->message_id = 'a2f1b5c0-0d52-4c8e-8a63-2f6a5d1c9b10';
$entities->persist($message);
$entities->flush();`
	drawn = `#[ORM\Id, ORM\Column, ORM\GeneratedValue] public int $id;`
)

func trips() []trip {
	const hasDoctrine = "php -m | grep -q pdo_pgsql && test -e /usr/share/php/Doctrine/ORM/autoload.php"
	const postgresJar = "/usr/share/java/postgresql.jar"
	return []trip{
		{"java/generated_keys", "javac -version && ls " + postgresJar, "cat > $TMPDIR/Trip.java && java -cp " + postgresJar + " $TMPDIR/Trip.java", jdbc, "prepareStatement(sql, java.sql.Statement.RETURN_GENERATED_KEYS)", `prepareStatement(sql, new String[]{"message_id"})`},
		{"node/sequelize_returning", "test -d node_modules", "node --input-type=module -", sequelize, "", "returning: ['message_id']"},
		{"php/doctrine_key", hasDoctrine, "php", doctrine, drawn, `#[ORM\Id, ORM\Column(type: 'guid')] public string $message_id;`},
		{"php/doctrine_identity", hasDoctrine, "php", doctrine, drawn, `#[ORM\Id, ORM\Column, ORM\GeneratedValue(strategy: 'IDENTITY')] public int $id;`},
		{"ruby/sequel", "ruby -e 'require \"sequel\"; require \"pg\"'", "ruby", sequel, ":outbox", "DB[:outbox].returning(:id, :message_id)"},
	}
}

// run falls into the trap, and then takes the way out.
func (r trip) run(e *shop) {
	e.env = append(e.env, "TMPDIR="+e.t.TempDir())
	e.do("cdc-relay setup --app-role " + e.role)
	readme, err := os.ReadFile("README.md")
	if err != nil || !strings.Contains(string(readme), r.way) {
		e.t.Errorf("README.md does not show %s: %v", r.way, err)
	}
	run := func(way string) (string, error) {
		return e.command("{ " + r.command + "; } <<'PROGRAM'\n" + strings.ReplaceAll(r.program, "WAY", way) + "\nPROGRAM")
	}
	if out, err := run(r.trap); err == nil || !strings.Contains(out, "permission denied for table outbox") {
		e.t.Errorf("%s: %v\n%s", r.trap, err, out)
	}
	if out, err := run(r.way); err != nil {
		e.t.Errorf("%s: %v\n%s", r.way, err, out)
	}
	e.want("SELECT string_agg(routing_key || (payload ->> 'order_id'), ',') FROM outbox", "orders42")
}
