"""once: a task that does its work once, also if its message arrives again."""
import inspect
import uuid
from contextlib import contextmanager
from functools import partial, wraps

from celery import current_task


def once(function=None, *, using=None, table="inbox", begin=None):
    """Runs a task's function in a transaction that also inserts the task's id into the inbox. A second run only returns None.

    `using` is a database of Django. Without Django, begin() is a context manager: a transaction that gives a cursor of the driver.
    """
    if function is None:
        return partial(once, using=using, table=table, begin=begin)

    @wraps(function)
    def run(*args, **kwargs):
        with begin() if begin else _begin(using) as cursor:
            if current_task and current_task.request.id:  # else it is called as a function
                cursor.execute(f"INSERT INTO {table} (message_id) VALUES (%s::uuid) ON CONFLICT DO NOTHING", [_key(current_task.request)])
                if not cursor.rowcount:
                    return None
            return function(*args, **kwargs)

    run.__signature__ = inspect.signature(function)  # Celery's check of arguments reads it
    return run


@contextmanager
def _begin(using):
    from django.db import connections, transaction

    with transaction.atomic(using), connections[using or "default"].cursor() as cursor:
        yield cursor


def _key(request):
    """The task's id, also of a retry and a replaced task: their exceptions roll back the insert of the run that sends them."""
    try:
        return str(uuid.UUID(str(request.id)))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, str(request.id)))
