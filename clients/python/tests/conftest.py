import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

pytest_plugins = ["cdc_relay.pytest_plugin"]
here = Path(__file__).parent
HANG = 120
RELAY = os.environ.get("CDC_RELAY_BINARY", "cdc-relay")

# Each run has its own queues and results.
run = f"shop_{uuid.uuid4().hex[:8]}"
results = tempfile.TemporaryDirectory(prefix="cdc-relay-python-")
os.environ.update(
    DJANGO_SETTINGS_MODULE="settings", SHOP_BROKER=os.environ["CDC_RELAY_AMQP_URL"], SHOP_QUEUE=run, SHOP_RESULTS=f"file://{results.name}",
    PATH=f"{Path(RELAY).parent}:{os.environ['PATH']}",  # for the runner
)  # fmt: skip


@pytest.fixture(scope="session")
def relay_environment(django_db_setup):
    """The environment of cdc-relay on the test's database."""
    from django.db import connection

    s = connection.settings_dict
    url = f"postgres://{s['USER']}:{s['PASSWORD']}@{s['HOST']}:{s['PORT']}/{s['NAME']}"
    return {
        **os.environ, "CDC_RELAY_DATABASE_URL": url, "SHOP_DATABASE": s["NAME"], "CDC_RELAY_SLOT": run, "CDC_RELAY_PUBLICATION": run,
        "CDC_RELAY_HTTP_ADDR": "", "CDC_RELAY_POLL_INTERVAL": "100ms", "CDC_RELAY_MAX_RETRIES": "0",
        "PYTHONPATH": f"{here}:{here.parent}", "C_FORCE_ROOT": "1",  # the worker accepts pickle
    }  # fmt: skip


def execute(sql, parameters=None):
    """Runs statements in the test's connection, and returns the rows of the last one."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else None


def until(condition, what):
    deadline = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


class Process:
    """A program started by a test, with its output."""

    def __init__(self, arguments, environment):
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(arguments, env=environment, cwd=here, stdout=self.output, stderr=subprocess.STDOUT)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(60)

    def said(self):
        self.output.seek(0)
        return self.output.read()


def running(environment):
    """start(argument, …) runs a program until the test ends; pytest shows its output if the test fails."""
    started = []

    def start(*arguments, **more):
        process = Process(arguments, {**environment, **more})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.process.poll() is None:
            process.stop()
        print(process.said())


@pytest.fixture
def start(relay_environment):
    yield from running(relay_environment)


@pytest.fixture
def relay(relay_environment):
    """relay(VARIABLE=value) starts a relay. Its slot is dropped after the test, because it prevents dropping the database."""
    subprocess.run([RELAY, "setup"], check=True, env=relay_environment, stdout=subprocess.DEVNULL)
    for start in running(relay_environment):
        yield lambda **environment: start(RELAY, "run", **environment)
    subprocess.run([RELAY, "teardown", "--yes"], check=True, env=relay_environment, stdout=subprocess.DEVNULL)


def celery_worker(start, queue, **environment):
    return start(
        sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo", "-l", "INFO", "-Q", f"{queue},{queue}_mail",
        "--without-gossip", "--without-mingle", "--without-heartbeat", SHOP_QUEUE=queue, **environment,
    )  # fmt: skip


@pytest.fixture(scope="session")
def worker(relay_environment):
    """One Celery worker for all tests. Its results are in files."""
    for start in running(relay_environment):
        yield celery_worker(start, run)
