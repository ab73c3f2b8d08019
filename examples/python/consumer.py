"""consumer.py COUNT: pika and psycopg 3."""
import json
import os
import sys

import pika
import psycopg

conn = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)


def handle(channel, method, properties, body):
    with conn.transaction():  # the inbox and the work commit together
        new = conn.execute(
            "INSERT INTO inbox (message_id) VALUES (%s) ON CONFLICT DO NOTHING", (properties.message_id,)
        ).rowcount
        if new:
            conn.execute("INSERT INTO parcels (order_id) VALUES (%s)", (json.loads(body)["order_id"],))
    channel.basic_ack(method.delivery_tag)  # after COMMIT: if it crashes before, the broker redelivers


channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])).channel()
channel.queue_declare("orders", durable=True)
channel.basic_qos(prefetch_count=10)
left = int(sys.argv[1])
for method, properties, body in channel.consume("orders"):
    handle(channel, method, properties, body)
    left -= 1
    if left == 0:
        break
channel.connection.close()
