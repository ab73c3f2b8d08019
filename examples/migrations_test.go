package examples_test

import "path/filepath"

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
