package examples_test

import (
	"os"
	"testing"
)

// tools run the file of docs/migrations.md, with the code of the page.
func tools() map[string]func(*testing.T, string) {
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
	return map[string]func(*testing.T, string){
		"python/alembic": func(t *testing.T, bin string) {
			migrate(t, bin, "alembic --version && /usr/bin/python3 -c 'import psycopg2'", alembic, documented(t, "migrations.md", "Alembic", "python"))
		},
		"python/django_migration": func(t *testing.T, bin string) {
			migrate(t, bin, "/usr/bin/python3 -c 'import django, psycopg2'", django, documented(t, "migrations.md", "Django", "python"))
		},
		"node/liquibase": func(t *testing.T, bin string) {
			migrate(t, bin, "java -version && test -d node/node_modules/liquibase", liquibase, documented(t, "migrations.md", "Liquibase", "yaml"))
		},
		"node/node-pg-migrate": func(t *testing.T, bin string) {
			migrate(t, bin, "test -d node/node_modules/node-pg-migrate", nodePgMigrate, documented(t, "migrations.md", "node-pg-migrate", "sh"))
		},
		"psql/migration": func(t *testing.T, bin string) {
			migrate(t, bin, "psql --version", `psql -qX1 -v ON_ERROR_STOP=1 "$CDC_RELAY_DATABASE_URL" -f outbox.sql`, "")
		},
	}
}

// migrate writes the file of the page, and lets a tool run it. The commands read the code of the page.
func migrate(t *testing.T, bin, needs, commands, code string) {
	folder, err := os.Getwd()
	must(t, err)
	e := &shop{t: t, folder: folder, env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "NODE="+folder+"/node")}
	e.installed(needs)
	e.servers("nobody", "")
	e.folder = t.TempDir()
	e.env = append(e.env, "DATABASE_URL="+e.owner.Config().ConnString())
	e.do(documented(t, "migrations.md", "Tables in your own migrations", "sh"))
	e.do("{ " + commands + "\n} <<'CODE'\n" + code + "CODE")
	e.want("SELECT version::text FROM public.outbox_migrations", "1")
	e.do("cdc-relay setup | grep -x 'tables of public.outbox: version 1, nothing to do'")
}
