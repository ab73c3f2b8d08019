package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

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
	prisma = `import { PrismaPg } from '@prisma/adapter-pg'
import { PrismaClient } from './gen/index.js'
const db = new PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DATABASE_URL }) })
await db.outbox.create({ data: { routing_key: 'orders', payload: { order_id: 42 } }, WAY })
await db.$disconnect()`
	// generate makes the client. It runs no engine, and none can be downloaded where CI runs.
	generate = `ln -sfn "$PWD/node_modules" $TMPDIR/node_modules && cd $TMPDIR && printf '%s\n' 'generator client {' 'provider = "prisma-client-js"' 'output = "gen"' '}' \
  'datasource db {' 'provider = "postgresql"' '}' 'model Outbox {' 'message_id String @id @default(uuid()) @db.Uuid' 'routing_key String' 'payload Json @db.Json' '@@map("outbox")' '}' > schema.prisma &&
  PRISMA_SCHEMA_ENGINE_BINARY=/bin/true npx prisma generate --schema schema.prisma < /dev/null && cat > trip.mjs && node trip.mjs`
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

func trips() []example {
	const hasDoctrine = "php -m | grep -q pdo_pgsql && test -e /usr/share/php/Doctrine/ORM/autoload.php"
	const postgresJar = "/usr/share/java/postgresql.jar"
	return []example{
		trip("java/generated_keys", "javac -version && ls "+postgresJar, "cat > $TMPDIR/Trip.java && java -cp "+postgresJar+" $TMPDIR/Trip.java", jdbc, "prepareStatement(sql, java.sql.Statement.RETURN_GENERATED_KEYS)", `prepareStatement(sql, new String[]{"message_id"})`),
		trip("node/sequelize_returning", "test -d node_modules", "node --input-type=module -", sequelize, "", "returning: ['message_id']"),
		trip("node/prisma_returning", "test -d node_modules/@prisma/adapter-pg", generate, prisma, "", "select: {message_id: true}"),
		trip("php/doctrine_key", hasDoctrine, "php", doctrine, drawn, `#[ORM\Id, ORM\Column(type: 'guid')] public string $message_id;`),
		trip("php/doctrine_identity", hasDoctrine, "php", doctrine, drawn, `#[ORM\Id, ORM\Column, ORM\GeneratedValue(strategy: 'IDENTITY')] public int $id;`),
		trip("ruby/sequel", "ruby -e 'require \"sequel\"; require \"pg\"'", "ruby", sequel, ":outbox", "DB[:outbox].returning(:id, :message_id)"),
	}
}

// trip is a program that inserts a message with the grants of setup --app-role. WAY is first the trap, for which
// Postgres denies the permission, and then the way out, which README.md shows.
func trip(name, needs, command, program, trap, way string) example {
	return example{name, needs, func(e *shop) {
		e.env = append(e.env, "TMPDIR="+e.TempDir())
		e.do("cdc-relay setup --app-role " + e.role)
		readme, err := os.ReadFile("README.md")
		if err != nil || !strings.Contains(string(readme), way) {
			e.Errorf("README.md does not show %s: %v", way, err)
		}
		run := func(way string) (string, error) {
			return e.command("{ " + command + "; } <<'PROGRAM'\n" + strings.ReplaceAll(program, "WAY", way) + "\nPROGRAM")
		}
		if out, err := run(trap); err == nil || !strings.Contains(out, "permission denied for table outbox") {
			e.Errorf("%s: %v\n%s", trap, err, out)
		}
		if out, err := run(way); err != nil {
			e.Errorf("%s: %v\n%s", way, err, out)
		}
		e.want("SELECT string_agg(routing_key || (payload ->> 'order_id'), ',') FROM outbox", "orders42")
	}}
}

// walks go through the README of a folder as a new user does.
func walks() []example {
	return []example{
		{"go/walk", "go version && psql --version", func(e *shop) {
			e.walk()
			e.do("go vet ./... && go test -count 1 ./...") // the tests can run again
			e.do(`test -z "$(gofmt -l .)"`)
		}},
		{"node/walk", "test -d node_modules && psql --version", func(e *shop) {
			e.walk()
			e.do("node --test")
			// Tests that cannot read the outbox, or reach Postgres, fail and do not hang.
			for variables, want := range map[string]string{
				`CDC_RELAY_DATABASE_URL="$DATABASE_URL"`:                                                      "permission denied for table outbox",
				`CDC_RELAY_DATABASE_URL=postgres://127.0.0.1:1/shop DATABASE_URL=postgres://127.0.0.1:1/shop`: "ECONNREFUSED",
			} {
				if out, err := e.command(variables + " node --test"); err == nil || !strings.Contains(out, want) {
					e.Errorf("%s node --test: %v\n%s", variables, err, out)
				}
			}
		}},
	}
}

// block is a code block with its language.
var block = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// file is the comment with a name in the first line of a file.
var file = regexp.MustCompile(`^(?://|--) ([\w./]+)\n`)

// walk writes the files and runs the commands of the section "Walk", in their order, in one shell and an empty folder. The
// role of the README has another name here, because roles are shared by all databases.
func (e *shop) walk() {
	readme, err := os.ReadFile(e.folder + "/README.md")
	must(e, err)
	clone, err := filepath.Abs("..")
	must(e, err)
	role, app := e.Role("")
	e.Exec("DROP ROLE " + role) // the walk creates it
	e.env = append(e.env, "CLONE="+clone, "CDC_RELAY_HTTP_ADDR=", "npm_config_prefer_offline=true", "DATABASE_URL="+app)
	_, section, found := strings.Cut(strings.ReplaceAll(string(readme), "shop_app", role), "\n## Walk")
	if !found {
		e.Fatal("no section Walk")
	}
	var script strings.Builder
	script.WriteString("set -euo pipefail\n")
	commands := 0
	for _, b := range block.FindAllStringSubmatch(section, -1) {
		language, text := b[1], b[2]
		if name := file.FindStringSubmatch(text); name != nil {
			script.WriteString("mkdir -p " + filepath.Dir(name[1]) + "\ncat >" + name[1] + " <<'END OF FILE'\n" + text + "END OF FILE\n")
		} else if language == "sh" && !strings.HasPrefix(text, "export ") { // the test has its own addresses
			script.WriteString(text)
			commands++
		} else if language != "sh" {
			e.Fatalf("a block without the name of its file:\n%s", text)
		}
	}
	if commands < 5 {
		e.Fatalf("found %d blocks with commands", commands)
	}
	e.folder = e.TempDir()
	out, err := e.command(script.String())
	if err != nil || !strings.HasSuffix(out, "\n42\n") {
		e.Fatalf("%v\n%s", err, out)
	}
	e.folder = filepath.Join(e.folder, "shop")
}
