"""The trace of Sentry travels in headers: with the real SDK, which sends its events to a function here."""
import json
import subprocess
import sys

import pytest

from conftest import here

sentry_sdk = pytest.importorskip("sentry_sdk")
if not hasattr(sentry_sdk, "get_client"):
    pytest.skip("older than sentry_sdk 2", allow_module_level=True)

INIT = """
import json, sys
import sentry_sdk
from sentry_sdk.transport import Transport

class Nowhere(Transport):
    def capture_envelope(self, envelope):
        pass

sentry_sdk.init(dsn="http://key@127.0.0.1:1/1", transport=Nowhere, traces_sample_rate=1.0, {options})
from celery import Celery
from celery.app import trace
import cdc_relay
rows = []
app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
cdc_relay.install(app, execute=lambda sql, values: rows.append(json.loads(values[sql.split(", ").index("headers")])), execute_apart=print, in_transaction=lambda: True)
app.finalize()

@app.task(name="other.task")
def task():
    print(sentry_sdk.get_traceparent().split("-")[0])
"""
SEND = """
with sentry_sdk.start_transaction(name="request") as transaction:
    {send}
print(json.dumps([transaction.trace_id, rows[0]]))
"""
RUN = """
request = {**json.loads(sys.argv[1]), "delivery_info": {}}
trace.build_tracer("other.task", task, app=app)(request["id"], (), {}, request)
"""
WITHOUT = "auto_enabling_integrations=False, default_integrations=False"


def run(program, *arguments, options=""):
    """Runs it in a process of its own, because Sentry patches Celery for the whole process."""
    program = INIT.replace("{options}", options) + program
    return subprocess.run([sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=here).stdout


@pytest.mark.parametrize("options, send", [("", "task.delay()"), ("", "app.send_task('other.task')"), (WITHOUT, "app.send_task('other.task')")])
def test_the_trace_travels_and_continues_in_a_worker_with_the_integration(options, send):
    trace_id, headers = json.loads(run(SEND.replace("{send}", send), options=options))
    assert headers["sentry-trace"].startswith(trace_id) and f"sentry-trace_id={trace_id}" in headers["baggage"]
    assert run(RUN, json.dumps(headers)).strip() == trace_id


OFF = "integrations=[__import__('sentry_sdk.integrations.celery', fromlist=['x']).CeleryIntegration(propagate_traces=False)]"


def test_the_integration_may_turn_traces_off():
    _, headers = json.loads(run(SEND.replace("{send}", "task.delay()"), options=OFF))
    assert "sentry-trace" not in headers


def test_headers_of_the_application_stay():
    send = "app.send_task('other.task', headers={'sentry-trace': 'mine', 'tenant': 'acme'})"
    _, headers = json.loads(run(SEND.replace("{send}", send), options=WITHOUT))
    assert headers["sentry-trace"] == "mine" and headers["tenant"] == "acme"
    assert headers["headers"] == {"sentry-trace": "mine", "tenant": "acme", "baggage": headers["baggage"]}


def test_an_sdk_that_is_not_initialized_sends_nothing():
    program = INIT.replace("sentry_sdk.init(", "dict(").replace("{options}", "") + "app.send_task('other.task')\nprint(json.dumps(rows[0]))"
    found = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, cwd=here).stdout
    assert not {"sentry-trace", "baggage"} & set(json.loads(found))
