"""The trace of Sentry travels in headers: with the real SDK, which sends its events to a function here."""
import json
import subprocess
import sys

import pytest

from conftest import here

sentry_sdk = pytest.importorskip("sentry_sdk")
if not hasattr(sentry_sdk, "get_client"):
    pytest.skip("older than sentry_sdk 2", allow_module_level=True)

APP = """
import json, sys
import sentry_sdk
from sentry_sdk.transport import Transport

class Nowhere(Transport):
    def capture_envelope(self, envelope):
        pass

sentry_sdk.init(dsn="http://key@127.0.0.1:1/1", transport=Nowhere, traces_sample_rate=1.0, {options})
from celery import Celery
import cdc_relay
rows = []
app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
cdc_relay.install(app, execute=lambda sql, values: rows.append(json.loads(values[6])), execute_apart=print, in_transaction=lambda: True)

@app.task(name="other.task")
def task():
    pass

with sentry_sdk.start_transaction(name="request") as transaction:
    {send}
print(json.dumps([transaction.trace_id, rows]))
"""


def sent(options, send):
    """The trace's id and the headers that a program with Sentry sends. Sentry patches Celery for the whole process."""
    program = APP.format(options=options, send=send)
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=here)
    trace_id, rows = json.loads(run.stdout)
    return trace_id, rows


WITHOUT = "auto_enabling_integrations=False, default_integrations=False"
SENDS = ["app.send_task('other.task')", "task.delay()"]


@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("options", ["", WITHOUT], ids=["integration", "no integration"])
def test_the_trace_travels(options, send):
    trace_id, (headers,) = sent(options, send)
    assert headers["sentry-trace"].startswith(trace_id) and f"sentry-trace_id={trace_id}" in headers["baggage"]
