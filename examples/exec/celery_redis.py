#!/usr/bin/env python3
"""usage: cdc-relay run --publisher exec -- ./celery_redis.py [--fanout EXCHANGE]… [--topic EXCHANGE]… [QUEUE]…

Sends each message to Redis by kombu, as Celery does if Redis is its broker. CELERY_BROKER_URL is the broker_url of the
workers, and CELERY_BROKER_TRANSPORT_OPTIONS their broker_transport_options as JSON. With QUEUEs, messages to other
queues are rejected.
"""
import argparse
import base64
import json
import os
import sys
import time

import redis
from kombu import Connection

PAYLOAD_IS_TEXT = ',"payload_base64":null}'
# Redis answers so if it did not store the message.
ERROR_REPLIES = (redis.ResponseError, redis.AuthenticationError, redis.BusyLoadingError)


class Redis:
    """A connection to Redis. After a failure, connect() fails for a second, so that many messages do not wait in turn."""

    def __init__(self, url, options, exchanges):
        self.url, self.exchanges, self.channel = url, exchanges, None
        self.options = {"socket_connect_timeout": 2, "socket_timeout": 5, **options}
        self.failure, self.retry_at = None, 0
        Connection(url).transport  # fails if there is no such transport

    def connect(self):
        """Returns a channel of kombu whose connection works. If it raises an exception, nothing was sent."""
        if time.monotonic() < self.retry_at:
            raise self.failure
        try:
            if self.channel is None:
                transport = Connection(self.url, transport_options=self.options).transport
                channel = transport.create_channel(transport.establish_connection())
                for name, kind in self.exchanges.items():
                    channel.exchange_declare(name, kind)  # kombu stores this only in this process
                self.channel = channel
            pool = self.channel.pool
            pool.release(pool.get_connection("LPUSH"))  # reconnects if Redis has closed the connection
        except Exception as failure:
            self.failure, self.retry_at = failure, time.monotonic() + 1
            raise
        return self.channel


def parse(line):
    """Returns the columns, the body as bytes and its type. The payload is not decoded: it may be nested deeply."""
    decode = json.JSONDecoder().raw_decode
    row, at = {}, 1  # after the brace
    while True:
        key, at = decode(line, at)
        if key == "payload":
            break
        row[key], at = decode(line, at + 1)
        at += 1
    if line.endswith(PAYLOAD_IS_TEXT):
        body = line[at + 1 : -len(PAYLOAD_IS_TEXT)].encode(errors="surrogateescape")
        return row, body, {"content_type": "application/json", "content_encoding": "utf-8"}
    body = base64.b64decode(json.loads(line[line.rindex(":") + 1 : -1]))
    return row, body, {"content_type": "application/octet-stream", "content_encoding": "binary"}


def prepare(channel, row, body, content):
    properties, headers = row["properties"] or {}, row["headers"] or {}
    content = {name: properties.pop(name, default) for name, default in content.items()}
    properties["message_id"] = row["message_id"]
    if row["possible_duplicate"]:
        headers["x-possible-duplicate"] = True
    return channel.prepare_message(body, headers=headers, properties=properties, **content)


def unroutable(channel, row, queues, fanouts):
    """Tells why no queue would get the message. kombu would send it to a key that no worker reads, or drop it."""
    exchange, key = row["exchange"], row["routing_key"]
    if not exchange:
        return f"there is no queue {key}" if queues and key not in queues else None
    if exchange in fanouts:  # Redis passes it on to the workers that listen now
        return None
    if channel.typeof(exchange).lookup(channel.get_table(exchange), exchange, key, None):
        return None
    return f"no queue is bound to the exchange {exchange} with the routing key {key}"


def deliver(server, line, queues, fanouts):
    """Returns the outcome of a line, and a detail."""
    try:
        row, body, content = parse(line)
    except (ValueError, RecursionError) as failure:  # headers can be nested too deeply
        return "impossible", text(failure)
    try:
        channel = server.connect()
    except Exception as failure:
        return "not_sent", text(failure)
    try:
        why = unroutable(channel, row, queues, fanouts)
        if why:
            return "rejected", why
        channel.basic_publish(prepare(channel, row, body, content), row["exchange"], row["routing_key"])
    except ERROR_REPLIES as failure:
        # Only this one concerns a single message. The others are Redis's own: out of memory, read-only, no permission.
        return "rejected" if str(failure).startswith("WRONGTYPE") else "not_sent", text(failure)
    except Exception as failure:
        return "unknown", text(failure)
    return "confirmed", ""


def text(failure):
    return f"{type(failure).__name__}: {failure}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS)
    parser.add_argument("--fanout", action="append", default=[], metavar="EXCHANGE")
    parser.add_argument("--topic", action="append", default=[], metavar="EXCHANGE")
    parser.add_argument("queues", nargs="*", metavar="QUEUE")
    flags = parser.parse_args()
    options = json.loads(os.environ.get("CELERY_BROKER_TRANSPORT_OPTIONS") or "{}")
    exchanges = {**dict.fromkeys(flags.fanout, "fanout"), **dict.fromkeys(flags.topic, "topic")}
    server = Redis(os.environ["CELERY_BROKER_URL"], options, exchanges)
    for line in sys.stdin.buffer:
        line = line.decode(errors="surrogateescape").rstrip("\n")
        outcome, detail = deliver(server, line, flags.queues, flags.fanout)
        message_id = line.split('"message_id":"', 1)[1][:36]  # the second key
        print(json.dumps({"message_id": message_id, "outcome": outcome, "detail": detail}), flush=True)


main()
