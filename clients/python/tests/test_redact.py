"""install(app, redact=…): nobody sees the arguments that it hides, and the worker gets them."""
import json
import uuid

import pytest
from celery import Celery, chain, chord, group
from celery.app.trace import build_tracer
from celery.signals import before_task_publish

import cdc_relay

SECRET = "4242-4242"
pytestmark = pytest.mark.django_db


def shop(redact, **options):
    """An app with tasks whose argument `card` is secret, with results in memory."""
    app = Celery("redacted", broker="amqp://127.0.0.1:1//", backend="cache+memory://", set_as_current=False)
    cdc_relay.install(app, redact=redact, **options)

    @app.task(shared=False, name="shop.pay")
    def pay(order, card=None, *more, **others):
        return order

    @app.task(shared=False, name="shop.refund", bind=True)
    def refund(self, order, card):
        raise self.retry(countdown=1)

    @app.task(shared=False, name="shop.pay_later", bind=True)
    def pay_later(self, order, card):
        raise self.replace(pay.s(order, card) | pay.s(card=SECRET))

    @app.task(shared=False, name="shop.again", autoretry_for=(ValueError,))
    def again(order, card):
        raise ValueError

    return app


def by_function(name, args, kwargs):
    """Changes what it gets, as it may."""
    hidden = {"shop.pay": 1, "shop.refund": 1, "shop.pay_later": 1}.get(name)
    if hidden is not None and len(args) > hidden:
        args[hidden] = "***"
    if "card" in kwargs:
        kwargs["card"] = "***"
    if "cards" in kwargs:
        kwargs["cards"][0]["number"] = "***"
    return args, kwargs


BY_NAME = {"shop.*": ["card"]}
both = pytest.mark.parametrize("redact", [by_function, BY_NAME], ids=["function", "mapping"])


def secret_in_sight(outbox):
    """The columns, except the payload, in which the secret is."""
    return {
        name for row in outbox.rows("SELECT * FROM outbox") for name, value in row.items()
        if name not in ("payload", "payload_bytes") and SECRET in json.dumps(value, default=str)
    }  # fmt: skip


@both
@pytest.mark.parametrize("args, kwargs", [((1, SECRET), {}), ((1,), {"card": SECRET}), ((), {"order": 1, "card": SECRET})])
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_the_worker_gets_what_others_do_not_see(outbox, redact, args, kwargs, serializer):
    shop(redact).tasks["shop.pay"].apply_async(args, kwargs, serializer=serializer)
    (sent,) = outbox
    assert (sent.args, sent.kwargs) == (list(args), kwargs)
    assert secret_in_sight(outbox) == set()
    redacted = json.dumps(sent.redacted_payload)
    assert "1" in redacted and ("***" in redacted or "[redacted]" in redacted)
    assert "1" in sent.headers["argsrepr"] + sent.headers["kwargsrepr"]


def test_the_redacted_payload_has_the_form_of_the_payload(outbox):
    shop(BY_NAME).send_task("shop.pay", (1, SECRET), {"note": "n"})
    (sent,) = outbox
    assert sent.redacted_payload == [[1, "[redacted]"], {"note": "n"}, sent.payload[2]]
    assert sent.headers["argsrepr"] == "(1, '[redacted]')" and sent.headers["kwargsrepr"] == "{'note': 'n'}"


def test_positional_arguments_without_a_known_name_are_hidden(outbox):
    app = shop({"*": ["card"]})
    app.send_task("elsewhere.pay", (1, SECRET), {"order": 2})  # not registered here
    app.send_task("shop.pay", (1, None, SECRET))  # *more
    app.send_task("shop.again", (1, SECRET))  # Celery wraps its function
    assert secret_in_sight(outbox) == set()
    assert [sent.redacted_payload[:2] for sent in outbox] == [
        [["[redacted]", "[redacted]"], {"order": 2}], [[1, "[redacted]", "[redacted]"], {}], [[1, "[redacted]"], {}],
    ]  # fmt: skip


def test_a_name_that_the_task_does_not_have_hides_all_its_arguments(outbox):
    app = shop({"shop.refund": ["card_number"], "shop.pay": ["note"], "*": ["password"]})
    app.send_task("shop.refund", (1,), {"card": SECRET})
    app.send_task("shop.pay", (1,), {"note": SECRET})  # it has **others
    assert secret_in_sight(outbox) == set()
    assert [sent.redacted_payload[:2] for sent in outbox] == [[["[redacted]"], {"card": "[redacted]"}], [[1], {"note": "[redacted]"}]]


def test_tasks_that_no_pattern_matches_have_no_redacted_payload(outbox):
    shop({"billing.*": ["card"]}).send_task("shop.pay", (1,), {"card": "open"})
    (sent,) = outbox
    assert sent.redacted_payload is None and sent.headers["kwargsrepr"] == "{'card': 'open'}"


@pytest.mark.parametrize("pattern", ["shop.pya", "pay"])
def test_a_misspelt_name_hides_all_that_no_other_pattern_matches(outbox, pattern):
    app = shop({pattern: ["card"], "shop.refund": ["order"]})
    with pytest.warns(UserWarning, match=f"redact: no task is named {pattern}"):
        app.send_task("shop.pay", (1, SECRET), {"note": SECRET})
    chain(app.tasks["shop.refund"].si(SECRET, 1), app.tasks["shop.pay"].si(2, SECRET)).delay()
    assert secret_in_sight(outbox) == set()
    assert outbox[1].redacted_payload[0] == ["[redacted]", 1]  # its own pattern is found


@both
def test_later_tasks_are_redacted(outbox, redact):
    app = shop(redact)
    pay = app.tasks["shop.pay"]
    secret = pay.s(2, SECRET)
    chain(pay.s(1), secret, pay.si(3, card=SECRET)).delay()
    pay.apply_async((1,), link=[secret, group(pay.s(1, SECRET), chain(secret, secret))], link_error=pay.s(1, SECRET))
    chord([pay.s(1, SECRET), pay.s(2, card=SECRET)])(pay.s(3, SECRET))
    chain(group(pay.s(1, SECRET), secret), secret, group(secret, secret)).delay()
    pay.starmap([(1, SECRET), (2, SECRET)]).delay()
    pay.chunks([(1, SECRET), (2, SECRET)], 1).apply_async()
    pay.apply_async((1,), {"later": secret, "all": [group(secret, secret)]})
    assert secret_in_sight(outbox) == set()
    assert any(SECRET in json.dumps(sent.payload[2]) for sent in outbox)


def test_the_arguments_of_map_are_redacted_as_those_of_the_task(outbox):
    app = shop({"shop.pay": ["order"]})
    app.tasks["shop.pay"].map([SECRET, SECRET]).delay()
    assert secret_in_sight(outbox) == set()
    assert outbox[0].redacted_payload[1]["it"] == ["[redacted]", "[redacted]"]


def test_a_partial_signature_hides_all_positional_arguments(outbox):
    """Its first argument may be the result of an earlier task."""
    pay = shop(BY_NAME).tasks["shop.pay"]
    chain(pay.s(1), pay.s("two", note="n"), pay.si("three", SECRET)).delay()
    three, two = outbox[0].redacted_payload[2]["chain"]
    assert (two["args"], two["kwargs"]) == (["[redacted]"], {"note": "n"})
    assert three["args"] == ["three", "[redacted]"]


@both
@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore::cdc_relay.OutsideTransactionWarning")
def test_retries_and_replaced_tasks_are_redacted(outbox, redact):
    app = shop(redact)
    for name in ("shop.refund", "shop.pay_later"):
        task = app.tasks[name]
        request = {"id": str(uuid.uuid4()), "delivery_info": {}}
        outcome = build_tracer(name, task, app=app)(request["id"], (1, SECRET), {}, request)
        assert outcome.info.state in ("RETRY", "IGNORED"), outcome
    assert [sent.task for sent in outbox] == ["shop.refund", "shop.pay"]
    assert secret_in_sight(outbox) == set()


@both
def test_receivers_of_signals_see_no_secret(outbox, redact):
    heard = []

    def hear(headers, **_):
        heard.append(json.dumps(headers))

    before_task_publish.connect(hear)
    cdc_relay.created.connect(hear)
    try:
        shop(redact).send_task("shop.pay", (1, SECRET))
    finally:
        before_task_publish.disconnect(hear)
        cdc_relay.created.disconnect(hear)
    assert len(heard) == 2 and SECRET not in "".join(heard)


@both
def test_excluded_tasks_are_redacted(outbox, redact, monkeypatch):
    app, published = shop(redact, exclude=["shop.*"]), []
    app.conf.task_send_sent_event = True
    monkeypatch.setattr("kombu.messaging.Producer.publish", lambda self, body, **options: published.append(options["headers"]))
    monkeypatch.setattr("celery.events.EventDispatcher.publish", lambda self, kind, fields, *_, **__: published.append(fields))
    app.send_task("shop.pay", (1, SECRET), producer=app.amqp.Producer(app.connection_for_write(), auto_declare=False))
    assert len(outbox) == 0 and len(published) == 2 and SECRET not in json.dumps(published)


def test_a_repr_of_the_application_is_kept(outbox):
    shop(BY_NAME).send_task("shop.pay", (1, SECRET), argsrepr="one order")
    assert outbox[0].headers["argsrepr"] == "one order" and secret_in_sight(outbox) == set()


class Card:
    def __repr__(self):
        return f"<card {SECRET}>"


def fails(name, args, kwargs):
    raise KeyError(kwargs["card"])


def fails_in_a_cause(name, args, kwargs):
    try:
        int(kwargs["card"])
    except ValueError as error:
        raise TypeError(str(error)) from error


@pytest.mark.parametrize("redact", [fails, fails_in_a_cause, lambda *_: None, lambda *_: (1, 2, 3), lambda n, a, k: (a, SECRET)])
@pytest.mark.parametrize("options", [{}, {"exclude": ["*"]}], ids=["outbox", "excluded"])
def test_an_error_of_the_function_sends_nothing_and_shows_nothing(outbox, redact, options):
    with pytest.raises(RuntimeError, match="redact failed for task shop.pay: .*The task was not sent") as raised:
        shop(redact, **options).send_task("shop.pay", (1,), {"card": SECRET})
    assert SECRET not in str(raised.value) and raised.value.__context__ is None and raised.value.__cause__ is None
    assert len(outbox) == 0


@pytest.mark.django_db(transaction=True)
def test_the_warning_shows_no_argument(outbox):
    with pytest.warns(cdc_relay.OutsideTransactionWarning) as warned:
        shop(BY_NAME).send_task("shop.pay", (1, SECRET))
    assert SECRET not in str(warned[0].message)


def test_values_without_a_json_form_are_shown_as_text(outbox):
    app = shop({"shop.*": ["card", "cards"]})
    values = (float("nan"), b"bytes", {1, 2}, "a\0b", "caf\udce9", object, {3: uuid.UUID(int=0)})
    app.tasks["shop.pay"].apply_async((values,), {"card": Card(), "cards": [Card()]}, serializer="pickle")
    (sent,) = outbox
    assert secret_in_sight(outbox) == set()
    assert sent.redacted_payload[0][0][:3] == ["nan", "b'bytes'", "{1, 2}"]
    assert sent.redacted_payload[1] == {"card": "[redacted]", "cards": "[redacted]"}


def test_what_the_function_changes_does_not_change_the_message(outbox):
    shop(by_function).send_task("shop.pay", (1,), {"cards": [{"number": SECRET}]})
    (sent,) = outbox
    assert sent.kwargs == {"cards": [{"number": SECRET}]} and sent.redacted_payload[1] == {"cards": [{"number": "***"}]}


@pytest.mark.parametrize("redact", [["card"], "card", {"shop.pay": "card"}])
def test_redact_is_a_function_or_a_mapping_to_lists(redact):
    with pytest.raises(TypeError, match="redact is a"):
        cdc_relay.install(Celery("other", set_as_current=False), redact=redact)
