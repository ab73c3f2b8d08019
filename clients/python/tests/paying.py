"""Tasks of test_inbox.py, which pay once. The process that runs `pay` kills itself the first time."""
import os
import signal
from functools import wraps
from pathlib import Path

from django.db import connection
from shop import app

from cdc_relay.inbox import once


def insert_payment():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO payment DEFAULT VALUES")
    return "paid"


def die(marker):
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def dies_after_commit(function):
    @wraps(function)
    def run(before_commit, marker):
        result = function(before_commit, marker)
        die(marker)
        return result

    return run


@app.task(name="paying.pay", acks_late=True, reject_on_worker_lost=True)
@dies_after_commit
@once
def pay(before_commit, marker):
    insert_payment()
    if before_commit:
        die(marker)
    return "paid"


@app.task(name="paying.pay_at_the_second_attempt", bind=True)
@once(using="default")
def pay_at_the_second_attempt(self):
    insert_payment()
    if self.request.retries < 1:
        raise self.retry(countdown=0)
    return "paid"


@app.task(name="paying.pay_simply")
@once
def pay_simply():
    return insert_payment()


@app.task(name="paying.pay_by_another_task", bind=True)
@once
def pay_by_another_task(self):
    insert_payment()
    raise self.replace(pay_simply.s())
