"""Django, in one file; a project needs only the two models and place_order."""
import os
import uuid
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.db import models, transaction

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": unquote(url.username),
            "PASSWORD": unquote(url.password or ""),
            "HOST": url.hostname,
            "PORT": url.port,
        }
    }
)
django.setup()


class Order(models.Model):
    id = models.IntegerField(primary_key=True)
    customer = models.TextField()

    class Meta:
        app_label, db_table, managed = "shop", "orders", False


class Outbox(models.Model):
    """The key is message_id, generated here: id would need INSERT … RETURNING, and so SELECT (id)."""

    message_id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    routing_key = models.TextField()
    payload = models.JSONField()

    class Meta:
        app_label, db_table, managed = "shop", "outbox", False


def place_order(order_id):
    Order.objects.create(id=order_id, customer="acme")
    Outbox.objects.create(routing_key="orders", payload={"order_id": order_id, "customer": "acme"})


with transaction.atomic():
    place_order(42)

with transaction.atomic():
    place_order(43)
    transaction.set_rollback(True)  # no order is stored and no message is sent
