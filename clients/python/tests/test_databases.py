"""Which database of a Django project the row goes to."""
import warnings
from contextlib import ExitStack

import pytest
from celery import Celery
from django.db import connection, connections, transaction

import cdc_relay
from conftest import execute

pytestmark = [pytest.mark.django_db(transaction=True)]


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
    settings.DATABASE_ROUTERS = ["test_databases.ToBilling"]
    assert sends("default", "billing", rolled_back=["default"]) == ("", True)
    assert sends("default", "billing", rolled_back=["billing"]) == ("", False)
    assert sends("default", rolled_back=["default"], using="default") == ("", False)


def test_without_the_django_app_the_row_goes_to_default(billing, settings):
    settings.DATABASE_ROUTERS = ["test_databases.ToBilling"]
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
