"""cdc_relay.django.runner: the outbox in the test databases of `manage.py test` and pytest-django, of a small project."""
import os
import subprocess
import sys
from contextlib import closing

import psycopg2
import pytest
from conftest import here

PASSWORD = "p@ss:/?#[w]%20 'ö\"&"
SETTINGS = f"""
import multiprocessing
import os
from urllib.parse import urlsplit

multiprocessing.set_start_method("fork", force=True)  # Django 5.2 does not know the default of Python 3.14
url = urlsplit(os.environ["CDC_RELAY_DATABASE_URL"])
server = {{
    "ENGINE": "django.db.backends.postgresql", "HOST": url.hostname, "PORT": url.port, "USER": "tiny user", "PASSWORD": {PASSWORD!r},
    "OPTIONS": {{"sslmode": "disable"}},
}}
DATABASES = {{
    "default": {{**server, "NAME": "tiny"}},
    "replica": {{**server, "NAME": "tiny", "TEST": {{"MIRROR": "default"}}}},
    "billing": {{**server, "NAME": "tiny billing"}},
    "reports": {{**server, "NAME": "tiny_reports"}},
}}
DATABASE_ROUTERS = ["tiny_settings.Router"]
INSTALLED_APPS = ["cdc_relay.django.apps.CDCRelayConfig"]
CDC_RELAY_TABLE = "events.outbox"
TEST_RUNNER = os.environ.get("TINY_RUNNER", "cdc_relay.django.runner.Runner")
SECRET_KEY = "of the test"
USE_TZ = True


class Router:
    def allow_migrate(self, db, app_label, **_):
        return False if db == "reports" else None
"""
TESTS = """
import time
from pathlib import Path

from celery import Celery
from django.db import connections
from django.test import TestCase

import cdc_relay
from cdc_relay.django.models import OutboxMessage

app = Celery("tiny", broker="amqp://127.0.0.1:1//")
cdc_relay.install(app)
processes = Path(__file__).with_name("processes")


class Sending:
    databases = "__all__"

    def test_each_process_sends_a_task(self):
        app.send_task("tiny.task")
        assert OutboxMessage.objects.get().task == "tiny.task"
        OutboxMessage.objects.using("billing").create(routing_key="paid", payload={})
        name = connections["default"].settings_dict["NAME"]
        assert connections["replica"].settings_dict["NAME"] == name
        with connections["reports"].cursor() as cursor:
            cursor.execute("SELECT to_regclass('events.outbox')")
            assert cursor.fetchone() == (None,)
        (processes / name).touch()
        deadline = time.monotonic() + 60
        while len(list(processes.iterdir())) < %d:
            assert time.monotonic() < deadline, "the processes have no databases of their own"


class A(Sending, TestCase):
    pass


class B(Sending, TestCase):
    pass


class C(Sending, TestCase):
    pass
"""


@pytest.fixture(scope="module")
def role():
    """A role without any rights but to create databases."""
    with closing(psycopg2.connect(os.environ["CDC_RELAY_DATABASE_URL"])) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute('CREATE ROLE "tiny user" LOGIN CREATEDB PASSWORD %s', [PASSWORD])
            yield
            cursor.execute("SELECT quote_ident(datname) FROM pg_database WHERE datdba = '\"tiny user\"'::regrole")
            for (name,) in cursor.fetchall():  # a failed test has left it
                cursor.execute(f"DROP DATABASE {name}")
            cursor.execute('DROP ROLE "tiny user"')


@pytest.fixture
def tiny(role, tmp_path):
    """tiny("django", "test", processes=3) runs a module of Python in the project, and returns what it says and its exit code."""
    (tmp_path / "tiny_settings.py").write_text(SETTINGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = tiny_settings\n")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["cdc_relay.pytest_plugin"]\n')

    def run(*arguments, processes=1, **environment):
        (tmp_path / "test_tiny.py").write_text(TESTS % processes)
        (tmp_path / "processes").mkdir(exist_ok=True)
        for file in (tmp_path / "processes").iterdir():
            file.unlink()
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tiny_settings", "PYTHONPATH": f"{tmp_path}:{here.parent}", **environment},
        )  # fmt: skip
        return done.stdout, done.returncode

    return run


@pytest.mark.parametrize("processes", [1, 3])
def test_manage_py_test_creates_the_outbox(tiny, processes):
    said, code = tiny("django", "test", "--parallel", str(processes), processes=processes)
    assert code == 0, said


def test_databases_that_are_kept_get_the_outbox(tiny, tmp_path):
    test = "django", "test", "--parallel", "3", "--noinput"
    said, code = tiny(*test, "--keepdb", TINY_RUNNER="django.test.runner.DiscoverRunner")
    assert code == 1 and "cdc-relay setup --app-role " in said and "--table events.outbox" in said
    said, code = tiny(*test, "--keepdb", PATH="")
    assert code and "The program cdc-relay is not in PATH" in said
    (tmp_path / "cdc-relay").write_text("#!/bin/sh\necho disk full >&2\nexit 1\n")
    (tmp_path / "cdc-relay").chmod(0o755)
    said, code = tiny(*test, "--keepdb", PATH=str(tmp_path))
    assert code and "events.outbox" in said and "failed: disk full" in said
    for options in ["--keepdb"], []:  # the second run removes the databases
        said, code = tiny(*test, *options, processes=3)
        assert code == 0, said


@pytest.mark.parametrize("processes", [1, 3])
def test_pytest_django_creates_the_outbox(tiny, processes):
    pytest.importorskip("xdist")
    said, code = tiny("pytest", "-p", "no:cacheprovider", "-n", str(processes), processes=processes)
    assert code == 0, said
