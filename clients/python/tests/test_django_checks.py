"""Django's system checks, and the errors of an INSERT that the database rejects."""
import subprocess
import sys

import pytest
import shop
from django.core import checks
from django.db import DatabaseError, ProgrammingError, connection, transaction
from kombu import Connection

from cdc_relay.django.checks import _check_table, _problem_of, check_database
from cdc_relay.django.models import OutboxMessage
from cdc_relay.django.tables import command, quoted
from conftest import execute

INSTALLED = "import cdc_relay, celery\napp = celery.Celery('project', broker='amqp://')\n"


@pytest.fixture
def manage(tmp_path, relay_environment):
    """manage("check", settings="X = 1", project="…") runs a command in a project with these settings and this __init__.py."""

    def run(*arguments, settings="", project="", **environment):
        (tmp_path / "project").mkdir(exist_ok=True)
        (tmp_path / "project/__init__.py").write_text(project)
        (tmp_path / "project_settings.py").write_text(f"from settings import *\nINSTALLED_APPS += ['project']\n{settings}\n")
        path = f"{tmp_path}:{relay_environment['PYTHONPATH']}"
        environment = {**relay_environment, "DJANGO_SETTINGS_MODULE": "project_settings", "PYTHONPATH": path, **environment}
        done = subprocess.run([sys.executable, "-m", "django", *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    return run


def found():
    return {f"{message.id} {message.msg} {message.hint}" for message in check_database(None, databases=["default"])}


@pytest.fixture
def change(db):
    return execute


def test_a_complete_outbox_has_no_findings(manage):
    project = f"{INSTALLED}@app.task(name='metrics.collect')\ndef collect(): pass\ncdc_relay.install(app, exclude=['metrics.*'])"
    for arguments in ("check",), ("check", "--database", "default", "--fail-level", "DEBUG"), ("migrate",):
        code, said = manage(*arguments, project=project)
        assert code == 0 and "cdc_relay." not in said, said


def test_a_missing_table_stops_check_and_migrate_with_the_command_to_type(manage):
    for table in ("gone", "billing.events"):
        for arguments in ("check", "--database", "default"), ("migrate",):
            code, said = manage(*arguments, SHOP_TABLE=table)
            assert code == 1 and f"(cdc_relay.E001) Table {table} does not exist in database" in said, said
            assert "cdc-relay setup --app-role " in said and f"--table {table} --database-url postgres://OWNER@" in said and connection.settings_dict["NAME"] in said
            assert "The database has public.outbox. If that is the outbox" in said
            assert "As the owner of the database: cdc-relay setup" in said and "--app-role " in said, said
        code, said = manage("check", SHOP_TABLE=table)  # asks no database
        assert code == 0 and "cdc_relay." not in said, said


def test_the_table_of_each_celery_app_is_checked(manage):
    project = f"{INSTALLED}cdc_relay.install(app, table='billing.events')"
    code, said = manage("check", "--database", "default", project=project)
    assert code == 1 and "Table billing.events does not exist" in said and "Table outbox" not in said, said


def test_an_unknown_database_of_install_is_an_error(manage):
    code, said = manage("check", project=f"{INSTALLED}cdc_relay.install(app, using='biling')")
    assert code == 1 and "using='biling', which is no database" in said and "DATABASES has: default." in said, said
    code, said = manage("check", "--database", "default", project=f"{INSTALLED}cdc_relay.install(app, using='biling')")
    assert code == 1 and "Traceback" not in said, said


@pytest.mark.django_db
def test_a_database_that_is_down_is_an_error_of_check_with_database_only(manage):
    settings = "DATABASES['default']['PORT'] = 1"
    code, said = manage("check", settings=settings)
    assert code == 0, said
    code, said = manage("check", "--database", "default", settings=settings)  # the checks of Django 3.2 raise it
    assert code == 1 and "Connection refused" in said, said
    down = connection.copy()
    down.settings_dict["PORT"] = 1
    (one,) = _check_table(down, "outbox")
    assert one.id == "cdc_relay.E003" and "Database default does not answer:" in one.msg and "Connection refused" in one.msg


def test_another_database_has_no_outbox(manage):
    settings = "DATABASES['other'] = {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}"
    code, said = manage("check", "--database", "other", settings=settings)
    assert code == 0 and "cdc_relay." not in said, said
    project = f"{INSTALLED}cdc_relay.install(app, using='other')"
    code, said = manage("check", "--database", "other", settings=settings, project=project)
    assert code == 0 and "(cdc_relay.W006) Database other is no PostgreSQL" in said, said


@pytest.mark.parametrize(
    "settings, finding",
    [
        ("CDC_RELAY_TABEL = 'x'", "(cdc_relay.W001) cdc_relay does not read the setting CDC_RELAY_TABEL. HINT: Did you mean CDC_RELAY_TABLE?"),
        ("CDC_RELAY_AMQP_URL = 'x'", "setting CDC_RELAY_AMQP_URL. HINT: It reads CDC_RELAY_BROKER_URL, CDC_RELAY_SHOW_PAYLOAD, CDC_RELAY_TABLE."),
        ("CDC_RELAY_TABLE = 'billing.events.x'", "(cdc_relay.E004) CDC_RELAY_TABLE = 'billing.events.x' is not the name of a table."),
        ("CDC_RELAY_TABLE = 'my outbox'", "(cdc_relay.E004)"),
        ("CDC_RELAY_TABLE = ''", "(cdc_relay.E004)"),
    ],
)
def test_settings_are_checked(manage, settings, finding):
    code, said = manage("check", settings=settings)
    assert finding in said, said
    assert code == ("E0" in finding)


@pytest.mark.parametrize("table", ['billing."Events"', '"my outbox"', "Outbox", "bücher"])
def test_names_as_in_sql_are_no_finding(manage, table):
    code, said = manage("check", settings=f"CDC_RELAY_TABLE = {table!r}")
    assert code == 0 and "cdc_relay." not in said, said


def test_an_app_that_was_never_installed_is_a_warning(manage):
    code, said = manage("check", project=INSTALLED)
    assert code == 0 and "(cdc_relay.W003) The Celery app 'project' is not installed: the tasks go to the broker at once" in said, said
    code, said = manage("check", project="import celery\n@celery.shared_task\ndef f(): pass")
    assert code == 0 and "There are shared tasks, but no Celery app" in said and "mysite/__init__.py" in said, said
    code, said = manage("check", project="from celery import current_app\ncurrent_app.conf")  # no tasks of its own
    assert "W003" not in said, said


def test_the_check_leaves_the_default_app_of_celery_alone(manage):
    more = "from django.core import checks\nchecks.run_checks()\nfrom celery import _state\nassert _state.default_app is None"
    (code, said) = manage("shell", "-c", more)
    assert code == 0, said


def test_patterns_are_checked():
    names = ("metrics.collect", "shop.mail", "shop.letters.send")
    for pattern, problem in {
        "metrics.*": None, "shop.mail": None, "*.send": None, "[ms]*": None, "[!c]*": None, "[]ms]*": None, "elsewhere.*": "matches no registered task.",
        "metric.*": "Did you mean 'metrics.*'?", "shop.mial": "Did you mean 'shop.mail'?", "shop.letter.*": "Did you mean 'shop.letters.*'?",
        "": "matches no task", " metrics.*": "has spaces", "[shop": "without ]", r"shop\.mail": "regular expression", "^shop": "regular expression",
        7: "not a string",
    }.items():  # fmt: skip
        said = _problem_of(pattern, names)
        assert said is None if problem is None else problem in said, f"{pattern!r}: {said}"


def test_patterns_of_installed_apps_are_checked_with_the_tasks_that_a_worker_finds(manage, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/tasks.py").write_text("from celery import shared_task\n@shared_task(name='shop.pay')\ndef pay(card): pass")
    project = f"{INSTALLED}app.autodiscover_tasks(['project'])\ncdc_relay.install(app, exclude=['shop.mial', 'shop.*'], redact={{'shop.pya': ['card'], 'shop.p*': ['crad'], '*': ['card']}}, context=%s)"
    code, said = manage("check", project=project % ["request_*", "trace_parent", "request_id"])
    assert code == 0 and said.count("cdc_relay.W002") == 5, said
    for text in ("'shop.mial' in exclude", "'shop.p*' in redact of cdc_relay.install has crad, which no argument", "'shop.pya' in redact of cdc_relay.install matches no registered task. Did you mean 'shop.pay'?",
                 "'request_*' in context of cdc_relay.install is a pattern", "Did you mean 'traceparent'?"):  # fmt: skip
        assert text in said, said
    (tmp_path / "project/tasks.py").write_text("import gone")
    code, said = manage("check", project=project % ["request_id"])
    assert code == 0 and "(cdc_relay.W008) The tasks of the Celery app 'project' cannot be imported: ModuleNotFoundError: No module named 'gone'" in said, said


def test_settings_of_the_project_that_break_the_package(manage):
    installed = f"{INSTALLED}cdc_relay.install(app)"
    code, said = manage("check", project=f"{installed}\napp.conf.task_protocol = 1")
    assert code == 1 and "(cdc_relay.E006) The Celery app 'project' has task_protocol = 1." in said, said
    code, said = manage("check", project=installed, settings="INSTALLED_APPS.remove('cdc_relay.django.apps.CDCRelayConfig')")
    assert code == 0 and "(cdc_relay.W007) cdc_relay.install is called, but INSTALLED_APPS lacks the app." in said, said


def test_queues_are_checked_and_declared_before_a_deployment(manage, relay_environment):
    name = f"{relay_environment['SHOP_QUEUE']}_deploy"
    project = (f"{INSTALLED}import os\napp.conf.update(broker_url=os.environ['SHOP_BROKER'], task_default_queue='{name}', task_routes="
               f"[lambda *_, **__: None, {{'a.*': {{'queue': '{name}_routed'}}, 'b': '{name}_short', 'c': {{'priority': 3}}}}])\ncdc_relay.install(app)")  # fmt: skip
    missing = f"(cdc_relay.W009) The broker has no queue {name}, {name}_short, {name}_routed."
    for arguments, found in {("check", "--deploy"): missing, ("check",): "", ("cdc_relay_declare",): f"declared: {name}, {name}_short, {name}_routed"}.items():
        code, said = manage(*arguments, project=project)
        assert code == 0 and found in said and ("W009" in said) == ("W009" in found), said
    code, said = manage("check", "--deploy", project=project)
    assert "cdc_relay." not in said, said
    code, said = manage("check", "--deploy", project=project.replace("os.environ['SHOP_BROKER']", "'amqp://127.0.0.1:1//'"))
    assert code == 0 and "(cdc_relay.I002) The broker of the Celery app 'project' does not answer" in said, said
    with Connection(relay_environment["SHOP_BROKER"]) as connection:
        for queue in (name, f"{name}_routed", f"{name}_short"):
            connection.default_channel.queue_delete(queue)


def test_columns_are_checked(change):
    assert found() == set()
    change("ALTER TABLE outbox DROP expires_at, DROP coalesce_key CASCADE")
    (one,) = found()
    assert "E002 Table outbox (default) has no column coalesce_key, expires_at." in one and "cdc-relay setup --tables-only" in one
    change("ALTER TABLE outbox_dead_letter RENAME TO gone")
    assert any("has no dead-letter table" in one and "setup --tables-only" in one for one in found())
    change("ALTER TABLE outbox RENAME message_id TO m; ALTER TABLE outbox RENAME routing_key TO r")
    (one,) = found()
    assert "E001 Table outbox (default) is not an outbox of cdc-relay" in one


def test_a_column_that_no_insert_fills_is_a_warning(change):
    change("DELETE FROM outbox; ALTER TABLE outbox ADD region text NOT NULL DEFAULT 'eu', ADD tenant text NOT NULL, ADD n int GENERATED ALWAYS AS (1) STORED NOT NULL")
    (one,) = found()
    assert "W005 Table outbox (default): tenant is NOT NULL." in one


def test_grants_are_checked(change):
    change("CREATE ROLE shop_checks; GRANT USAGE ON SCHEMA public TO shop_checks; SET LOCAL ROLE shop_checks")
    by_id = {one.split()[0]: one for one in found()}
    assert "Role shop_checks may not INSERT into outbox (default). As the owner of the table: cdc-relay setup --app-role shop_checks" in by_id["cdc_relay.W004"]
    assert "GRANT SELECT ON outbox TO shop_checks; GRANT SELECT ON outbox_dead_letter TO shop_checks;" in by_id["cdc_relay.I001"]
    change("RESET ROLE; GRANT INSERT ON outbox TO shop_checks; GRANT SELECT ON outbox, outbox_dead_letter TO shop_checks; SET LOCAL ROLE shop_checks")
    assert found() == set()


def test_a_schema_outside_of_the_search_path(change):
    change("CREATE SCHEMA hidden; ALTER TABLE outbox SET SCHEMA hidden; ALTER TABLE outbox_dead_letter SET SCHEMA hidden")
    (one,) = found()
    assert "E001 Table outbox does not exist" in one and "The database has hidden.outbox." in one


def test_checks_of_the_database_have_its_tag():
    assert check_database in checks.registry.registry.get_checks() and check_database.tags == (checks.Tags.database,)
    assert check_database(None, databases=None) == []


# Errors of an INSERT

SEND = {
    "delay": lambda: shop.add.delay(1, 2),
    "create": lambda: OutboxMessage.objects.create(routing_key="orders", payload={}),
    "save": lambda: OutboxMessage(routing_key="orders", payload={}).save(),
    "bulk_create": lambda: OutboxMessage.objects.bulk_create([OutboxMessage(routing_key="orders", payload={})]),
}
FAULTS = {
    "ALTER TABLE outbox RENAME TO gone": ("42P01", 'relation "outbox" does not exist', "As the owner of database test_", "create the outbox: cdc-relay setup --app-role "),
    "ALTER TABLE outbox DROP headers": ("42703", '"headers" of relation "outbox" does not exist', "As the owner of the table, update it:", "cdc-relay setup --tables-only --database"),
    "CREATE ROLE shop_sends; GRANT USAGE ON SCHEMA public TO shop_sends; SET LOCAL ROLE shop_sends": (
        "42501", "permission denied for table outbox", "may not send", "cdc-relay setup --app-role"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("send", SEND)
def test_the_error_of_an_insert_says_what_to_type(change, fault, send):
    code, *texts = FAULTS[fault]
    change(fault)
    with pytest.raises(ProgrammingError) as raised, transaction.atomic():
        SEND[send]()
    said = str(raised.value)
    for text in (*texts, "manage.py check --database default"):
        assert text in said
    assert code in (getattr(raised.value.__cause__, "sqlstate", None), getattr(raised.value.__cause__, "pgcode", None))


@pytest.mark.parametrize("send", SEND)
def test_the_error_of_a_trigger_is_as_before(change, send):
    change(
        """CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM 1 FROM audit; RETURN NEW; END';
        CREATE TRIGGER broken BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION broken()"""
    )
    with pytest.raises(ProgrammingError, match='"audit" does not exist') as raised, transaction.atomic():
        SEND[send]()
    assert "cdc-relay" not in str(raised.value)


def test_other_errors_are_as_before(change):
    with pytest.raises(DatabaseError) as raised, transaction.atomic():
        OutboxMessage.objects.create(routing_key=None)
    assert "cdc-relay" not in str(raised.value)


@pytest.mark.parametrize(
    "settings, table, wanted",
    [
        ({}, "outbox", "cdc-relay setup"),
        ({"NAME": "shop"}, "public.Outbox", "cdc-relay setup --database-url postgres://OWNER@/shop"),
        ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "a@b", "PASSWORD": "s3cr3t"}, "billing.events",
         "cdc-relay setup --table billing.events --database-url postgres://OWNER@db:5433/shop"),
        ({"NAME": "a b", "HOST": "::1", "PORT": ""}, 'billing."Events"',
         "cdc-relay setup --table 'billing.\"Events\"' --database-url 'postgres://OWNER@[::1]/a%20b'"),
        ({"NAME": "shop", "HOST": "/run/postgresql", "PORT": "5433", "USER": "u"}, "outbox",
         "cdc-relay setup --database-url 'postgres://OWNER@/shop?host=/run/postgresql&port=5433'"),
    ],
)  # fmt: skip
def test_the_command_names_table_and_database(settings, table, wanted):
    class Connection:
        settings_dict = settings

    assert command(Connection, table) == wanted


def test_names_are_quoted_as_sql_reads_them():
    assert quoted('Billing."Ev""ents"', "_dead_letter") == '"billing"."Ev""ents_dead_letter"'
