"""psycopg 3."""
import os

import psycopg
from psycopg.types.json import Json


def place_order(conn, order_id):
    conn.execute("INSERT INTO orders (id, customer) VALUES (%s, 'acme')", (order_id,))
    conn.execute(
        "INSERT INTO outbox (routing_key, payload) VALUES (%s, %s)",
        ("orders", Json({"order_id": order_id, "customer": "acme"})),
    )


with psycopg.connect(os.environ["DATABASE_URL"]) as conn:
    with conn.transaction():
        place_order(conn, 42)

    with conn.transaction():
        place_order(conn, 43)
        raise psycopg.Rollback()  # no order is stored and no message is sent
