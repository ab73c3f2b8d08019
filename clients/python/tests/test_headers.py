"""Headers of a task: which values they carry, and the context of the sender."""
import sys
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
import shop
from celery import Celery, chain
from celery.app.trace import build_tracer

import cdc_relay

pytestmark = pytest.mark.django_db


def other_app(**options):
    app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
    cdc_relay.install(app, **options)

    @app.task(shared=False, name="other.next")
    def next_task(*_):
        pass

    return app


def test_values_of_headers(outbox):
    key, at = uuid.uuid4(), datetime(2030, 1, 2, 3, 4, tzinfo=timezone.utc)
    sent = {"id_": key, "price": Decimal("9.90"), "at": at, "day": date(2030, 1, 2), "tags": {"a"}, "pair": (1, 2.5), "none": None,
            "table": {"key": key, "deep": [{"at": at}]}, "flag": True, "large": 2**63 - 1}  # fmt: skip
    shop.add.apply_async((1, 2), headers=sent)
    (row,) = outbox
    assert {name: row.headers[name] for name in sent} == {
        "id_": str(key), "price": "9.90", "at": "2030-01-02T03:04:00+00:00", "day": "2030-01-02", "tags": ["a"], "pair": [1, 2.5],
        "none": None, "table": {"key": str(key), "deep": [{"at": "2030-01-02T03:04:00+00:00"}]}, "flag": True, "large": 2**63 - 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "value, error, message",
    [
        (b"secret", TypeError, r"header\['x'\]: a header cannot carry bytes: decode them"),
        (bytearray(b"s"), TypeError, "cannot carry bytearray"),
        ({"deep": [b"s"]}, TypeError, r"header\['x'\]\['deep'\]\[0\]: a header cannot carry bytes"),
        (object(), TypeError, "cannot carry object: send it as text"),
        (timedelta(1), TypeError, "cannot carry timedelta"),
        ({1: 2}, TypeError, "the keys of a table are text"),
        (2**63, ValueError, "cannot carry this number"),
        (-(2**53) - 1, ValueError, "cannot carry this number"),
        (float("nan"), ValueError, "cannot carry this number"),
        (float("-inf"), ValueError, "cannot carry this number"),
        (1e22, ValueError, "cannot carry this number"),
    ],
)
def test_values_that_no_header_carries_are_errors(outbox, value, error, message):
    with pytest.raises(error, match=message) as raised:
        shop.add.apply_async((1, 2), headers={"x": value})
    assert "secret" not in str(raised.value)
    assert len(outbox) == 0


def test_a_property_of_bytes_is_an_error(outbox):
    with pytest.raises(TypeError, match=r"property\['reply_to'\]"):
        shop.add.apply_async((1, 2), reply_to=b"queue")


def bound(**variables):
    return pytest.importorskip("structlog").contextvars.bound_contextvars(**variables)


def test_all_context_variables(outbox):
    app = other_app(context="*")
    with bound(request_id="r1", user=Decimal("7"), raw=b"raw", missing=None, tags={"a": 1}, offset=-3):
        app.send_task("other.next", headers={"request_id": "explicit"})
        app.send_task("other.next")
    first, second = outbox
    assert first.headers["request_id"] == "explicit"
    sent = {name: second.headers.get(name) for name in ("request_id", "user", "raw", "tags", "offset")}
    assert sent == {"request_id": "r1", "user": "7", "raw": "b'raw'", "tags": {"a": 1}, "offset": -3}
    assert "missing" not in second.headers


def test_context_variables_do_not_replace_headers_of_celery(outbox):
    app = other_app(context="*")
    names = "id task eta expires retries lang root_id group chord chain callbacks args is_eager called_directly stamps headers CC get".split()
    plain = set(other_app().send_task("other.next") and outbox.take().headers)
    with bound(**{name: "mine" for name in names}, long="x" * 5000, request_id="r1"):
        result = app.send_task("other.next")
    (sent,) = outbox
    assert sent.headers["id"] == result.id and sent.headers["task"] == "other.next" and sent.available_at is None
    assert set(sent.headers) - plain == {"request_id", "cdc_relay_context"}


@pytest.mark.parametrize("name", ["task", "id", "eta", "chain", "CC", "compression"])
def test_a_header_of_celery_is_no_name_of_a_context_variable(name):
    with pytest.raises(ValueError, match=f"'{name}' is a header of Celery or RabbitMQ"):
        other_app(context=["request_id", name])


@pytest.mark.parametrize("context", ["*", ["*"], ["request_id"]])
def test_the_context_reaches_the_next_tasks_and_retries(outbox, context):
    app = other_app(context=context)

    @app.task(shared=False, name="other.first", bind=True)
    def first(self):
        app.send_task("other.next")

    with bound(request_id="r1", secret="s"):
        chain(first.si(), app.tasks["other.next"].si()).apply_async(headers={"not_context": 1})
    sent = outbox.take()
    assert ("secret" in sent.headers) == ("*" in context)
    request = {**sent.headers, **sent.embed, "delivery_info": {}}
    build_tracer("other.first", first, app=app)(sent.task_id, (), {}, request)
    assert [(next_.headers["request_id"], "not_context" in next_.headers) for next_ in outbox] == [("r1", False)] * 2


def test_without_structlog_there_is_no_context(outbox, monkeypatch):
    monkeypatch.delitem(sys.modules, "structlog", raising=False)
    other_app(context="*").send_task("other.next")
    assert "cdc_relay_context" not in outbox[0].headers
