"""The Celery app of the tests and of the worker that they start."""
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")

import django  # noqa: E402
from celery import Celery, chain, chord, group  # noqa: E402
from django.db import transaction  # noqa: E402

import cdc_relay  # noqa: E402

django.setup()
app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ["SHOP_RESULTS"])
app.conf.update(
    task_default_queue=os.environ["SHOP_QUEUE"],
    accept_content=["json", "pickle"],
    result_accept_content=["json"],
    broker_connection_retry_on_startup=True,
    task_routes={"shop.mail": {"queue": os.environ["SHOP_QUEUE"] + "_mail", "priority": 5}},
    beat_schedule={"often": {"task": "shop.add", "schedule": 0.1, "args": (1, 2)}},
)
cdc_relay.install(app, exclude=["direct.*"], context=["request_id", "traceparent"])


@app.task(name="shop.add")
def add(x, y):
    return x + y


@app.task(name="shop.total")
def total(numbers):
    return sum(numbers)


@app.task(name="shop.mail")
def mail(to):
    return to


@app.task(name="direct.ping")
def ping():
    return "pong"


@app.task(name="shop.third_time", bind=True)
def third_time(self):
    """Succeeds at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(name="shop.retry_for_ever", bind=True, max_retries=None)
def retry_for_ever(self):
    raise self.retry(countdown=60)


@app.task(name="shop.header", bind=True)
def header(self, name):
    return self.request.get(name)


@app.task(name="shop.request_id_at_the_second_attempt", bind=True)
def request_id_at_the_second_attempt(self, *_):
    if self.request.retries < 1:
        raise self.retry(countdown=0.1)
    return self.request.get("request_id")


@app.task(name="shop.add_later", bind=True)
def add_later(self, x, y):
    """Replaces itself, with the same id."""
    raise self.replace(add.s(x, y))


@app.task(name="shop.retry_in_transaction", bind=True)
@transaction.atomic
def retry_in_transaction(self):
    """Sends a task and tries again. The exception of the retry rolls back the transaction, with that task."""
    mail.delay("rolled back")
    if self.request.retries < 1:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(name="shop.replace_in_transaction", bind=True)
@transaction.atomic
def replace_in_transaction(self, *numbers):
    raise self.replace(chain(add.s(*numbers), add.s(10)))


@app.task(name="shop.replace_by_group_in_transaction", bind=True)
@transaction.atomic
def replace_by_group_in_transaction(self):
    mail.delay("rolled back")
    raise self.replace(group(add.s(1, 1), chain(add.s(1, 1), add.s(1)), group(add.s(2, 2), add.s(2, 3))))


@app.task(name="shop.replace_by_chord_in_transaction", bind=True)
@transaction.atomic
def replace_by_chord_in_transaction(self):
    raise self.replace(chord([add.s(1, 1), add.s(2, 2)], total.s()))
