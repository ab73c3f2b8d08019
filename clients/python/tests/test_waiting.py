"""cdc_relay.django.waiting: a transaction that waits for the relay; and which database a row goes to."""
import logging
import warnings
from contextlib import ExitStack

import pytest
import shop
from celery import Celery
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

import cdc_relay
from cdc_relay.django.models import DeadLetter, OutboxMessage
from cdc_relay.django.waiting import outbox_context
from conftest import execute

pytestmark = pytest.mark.django_db(transaction=True)
LONG = 120
QUEUE = f"{shop.app.conf.task_default_queue}_waiting"


@pytest.fixture(autouse=True)
def empty(outbox):
    shop.app.amqp.queues.select_add(QUEUE)
    cdc_relay.declare_queues(shop.app)
    yield
    outbox.clear()
    DeadLetter.objects.all().delete()


def message(routing_key=QUEUE):
    return str(OutboxMessage.objects.create(routing_key=routing_key, payload={}).pk)


def count():
    return OutboxMessage.objects.count()


def test_it_waits_until_the_messages_are_published(relay, outbox):
    relay()
    with outbox_context(timeout=LONG) as outcomes:
        ids = [message(), shop.mail.apply_async(("ann",), queue=QUEUE).id, message("of no queue")]
        assert outcomes == {}
    assert outcomes == dict(zip(ids, ["published", "published", "dead: retries_exhausted"]))
    assert count() == 0


def test_without_a_relay_messages_stay_waiting():
    with outbox_context(timeout=0.01) as outcomes:
        first, second = message(), message()
    assert outcomes == {first: "waiting", second: "waiting"} and count() == 2


def test_without_flush_it_is_a_transaction():
    with pytest.raises(ZeroDivisionError), outbox_context(flush=False):
        message()
        raise ZeroDivisionError
    assert count() == 0
    with outbox_context(flush=False) as outcomes:
        message()
    assert outcomes == {} and count() == 1


def test_what_was_rolled_back_is_not_waited_for():
    with outbox_context(timeout=0) as outcomes:
        for inner in outbox_context, transaction.atomic:
            with pytest.raises(ZeroDivisionError), inner():
                message()
                raise ZeroDivisionError
        kept = message()
    assert outcomes == {kept: "waiting"} and count() == 1
    with pytest.raises(ZeroDivisionError), outbox_context(timeout=0) as outcomes:
        message()
        raise ZeroDivisionError
    assert outcomes == {} and count() == 1
    message()  # no context is left
    assert outcomes == {}


def test_flush_of_a_nested_context_is_for_its_messages(relay):
    relay()
    for outer in True, False:
        with outbox_context(flush=outer, timeout=LONG) as outcomes:
            with outbox_context(flush=not outer, timeout=0) as inner:
                other = message()
            with outbox_context(timeout=0):
                as_around = message()
            assert inner is outcomes == {}
        assert outcomes == {as_around if outer else other: "published"}


def test_only_the_outermost_context_asks_and_stops_in_time():
    old = OutboxMessage.objects.create(routing_key=QUEUE, payload={})
    with CaptureQueriesContext(connection) as queries, outbox_context(timeout=0) as outcomes:
        with outbox_context():
            ids = [message(), message()]
            old.save()
    assert outcomes == dict.fromkeys(ids, "waiting")
    assert ["_await" in query["sql"] for query in queries].count(True) == 1


def test_it_waits_after_the_commit_of_a_transaction_around_it(relay):
    relay()
    with transaction.atomic():
        with outbox_context(timeout=LONG) as outcomes:
            id = message()
        assert outcomes == {}
    assert outcomes == {id: "published"}


def test_a_failed_wait_is_logged_and_leaves_the_message_to_the_relay(caplog):
    execute("ALTER FUNCTION outbox_await RENAME TO gone")
    try:
        with caplog.at_level(logging.WARNING), outbox_context() as outcomes:
            id = message()
    finally:
        execute("ALTER FUNCTION gone RENAME TO outbox_await")
    assert outcomes == {id: "waiting"} and count() == 1
    assert "function outbox_await(" in caplog.text and "does not exist" in caplog.text


def test_each_database_has_its_own_context(billing, settings):
    with outbox_context(timeout=0) as outcomes:
        with outbox_context(using="billing", timeout=0) as other:
            id = message()
            OutboxMessage(routing_key="a", payload={}).save(using="billing")
        assert list(other.values()) == ["waiting"] and id not in other
        assert outcomes == {}
    assert outcomes == {id: "waiting"}
    settings.DATABASE_ROUTERS = ["test_waiting.ToBilling"]
    with outbox_context(timeout=0) as outcomes:
        id = message()
    assert outcomes == {id: "waiting"}


@pytest.mark.django_db
def test_in_a_test_s_transaction_it_does_not_wait(django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        with outbox_context() as outcomes:
            id = message()
    assert outcomes == {id: "waiting"} and count() == 1


@pytest.fixture
def billing(outbox):
    """A second alias, for another connection to the same database."""
    connections.databases["billing"] = {**connection.settings_dict}
    connections["billing"].connect()  # Django 5.2 lets a test connect only to databases that it has listed
    yield
    connections["billing"].close()
    del connections["billing"], connections.databases["billing"]


class ToBilling:
    def db_for_write(self, model, **_):
        return "billing" if model._meta.label == "cdc_relay.OutboxMessage" else None


def sends(*open_transactions, rolled_back=(), **options):
    """Sends a task in transactions. Returns the text of the warning, and whether the row was committed."""
    app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
    cdc_relay.install(app, **options)
    with warnings.catch_warnings(record=True) as warned, ExitStack() as stack:
        warnings.simplefilter("always")
        for alias in open_transactions:
            stack.enter_context(transaction.atomic(using=alias))
        app.send_task("other.task")
        for alias in rolled_back:
            transaction.set_rollback(True, using=alias)
    ((count,),) = execute("WITH sent AS (DELETE FROM outbox RETURNING 1) SELECT count(*) FROM sent")
    return " ".join(str(w.message) for w in warned if w.category is cdc_relay.OutsideTransactionWarning), count == 1


def test_without_routers_the_row_goes_to_default(billing):
    assert sends("default", "billing", rolled_back=["billing"]) == ("", True)
    assert sends("default", rolled_back=["default"]) == ("", False)


def test_the_row_follows_the_routers(billing, settings):
    settings.DATABASE_ROUTERS = ["test_waiting.ToBilling"]
    assert sends("default", "billing", rolled_back=["default"]) == ("", True)
    assert sends("default", "billing", rolled_back=["billing"]) == ("", False)
    assert sends("default", rolled_back=["default"], using="default") == ("", False)


def test_without_the_django_app_the_row_goes_to_default(billing, settings):
    settings.DATABASE_ROUTERS = ["test_waiting.ToBilling"]
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("cdc_relay")]
    assert sends("default", "billing", rolled_back=["billing"]) == ("", True)


def test_using_may_be_an_alias_or_a_function_for_each_row(billing):
    assert sends("billing", rolled_back=["billing"], using="billing") == ("", False)
    asked = iter(["billing"])
    assert sends("default", "billing", rolled_back=["default"], using=lambda: next(asked)) == ("", True)
    assert next(asked, None) is None
    app = Celery("other", broker="amqp://127.0.0.1:1//", set_as_current=False)
    aliases = iter(["default", "billing"])
    cdc_relay.install(app, using=lambda: next(aliases))
    with transaction.atomic(), transaction.atomic("billing"):
        app.send_task("other.first")
        app.send_task("other.second")
        transaction.set_rollback(True)
    assert execute("DELETE FROM outbox RETURNING headers->>'task'") == [("other.second",)]


def test_a_transaction_on_another_database_warns_and_is_named(billing):
    warning, committed = sends("default", using="billing", rolled_back=["default"])
    assert warning.endswith("A transaction is open on 'default', but the outbox is on 'billing'") and committed
    warning, _ = sends("billing")
    assert warning.endswith("A transaction is open on 'billing', but the outbox is on 'default'")
    warning, _ = sends()
    assert warning.endswith("it is sent even if the caller fails later")


def test_an_unknown_alias_is_an_error(outbox):
    with pytest.raises(Exception, match="elsewhere"):
        sends(using="elsewhere")


def test_using_does_not_go_with_execute():
    with pytest.raises(TypeError, match="using"):
        cdc_relay.install(Celery("o", set_as_current=False), execute=print, execute_apart=print, in_transaction=bool, using="default")
