"""A Celery app that sends its tasks through the outbox, and whose workers read them from Redis."""
import os

import cdc_relay
import psycopg
from celery import Celery
from psycopg.pq import TransactionStatus

conn = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
app = Celery("shop", broker=os.environ["CELERY_BROKER_URL"])
app.conf.accept_content = ["json", "pickle"]
app.conf.worker_prefetch_multiplier = 1  # else a worker fetches tasks before it knows of more urgent ones


@app.task(name="shop.ship", ignore_result=True)
def ship(order_id):
    conn.execute("INSERT INTO parcels (order_id) VALUES (%s)", [order_id])


def in_transaction():
    return conn.info.transaction_status == TransactionStatus.INTRANS


def execute_apart(sql, parameters):
    with psycopg.connect(os.environ["DATABASE_URL"]) as apart:
        apart.execute(sql, parameters)


cdc_relay.install(app, in_transaction=in_transaction, execute=conn.execute, execute_apart=execute_apart)


def place_order(order_id, **options):
    """Stores an order and its task. `options` are those of apply_async."""
    with conn.transaction():
        conn.execute("INSERT INTO orders (id, customer) VALUES (%s, 'acme')", [order_id])
        ship.apply_async((order_id,), **options)
