"""The tables of cdc-relay. Django does not create or migrate them: `cdc-relay setup` does."""
import uuid

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections, models, router, transaction
from django.utils import timezone

from ..celery import beginning
from .tables import explained, quoted

NAME = getattr(settings, "CDC_RELAY_TABLE", "outbox")
TABLE, DEAD_LETTER_TABLE = quoted(NAME), quoted(NAME, "_dead_letter")


class ParsedJSONField(models.JSONField):
    """A json column. Django turns the drivers' parser off only for jsonb."""

    def from_db_value(self, value, expression, connection):
        return value


class Message(models.Model):
    """The key is message_id, generated here, so that an application needs only INSERT on the table."""

    message_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    exchange = models.TextField(null=True)
    routing_key = models.TextField()
    ordering_key = models.TextField(null=True)
    coalesce_key = models.TextField(null=True)
    max_attempts = models.SmallIntegerField(null=True)
    payload = ParsedJSONField(null=True, encoder=DjangoJSONEncoder)
    payload_bytes = models.BinaryField(null=True)
    headers = models.JSONField(null=True, encoder=DjangoJSONEncoder)
    properties = models.JSONField(null=True)
    redacted_payload = ParsedJSONField(null=True, encoder=DjangoJSONEncoder)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    def __str__(self):
        name = self.shown_name if hasattr(self, "shown_name") else self.task or self.routing_key
        return f"{name} {self.message_id}"

    def _pk(self):
        """On the admin pages with the id: several rows may have one message_id, and several dead letters one id."""
        return f"{self.relay_id}.{self.message_id}" if hasattr(self, "relay_id") else self.message_id

    pk = property(_pk, models.Model.pk.fset)

    @property
    def task(self):
        """The name of the Celery task, or None."""
        return self.headers.get("task") if isinstance(self.headers, dict) else None


class MessageQuerySet(models.QuerySet):
    def of_task(self, task_id):
        """The messages of a Celery task: the first one, and its retries."""
        first = beginning(task_id)
        last = uuid.UUID(bytes=first.bytes[:12] + b"\xff" * 4)
        within = self.filter(message_id__range=(uuid.UUID(bytes=first.bytes[:12] + bytes(4)), last))
        return within.filter(models.Q(message_id=first) | models.Q(headers__id=str(task_id)) | models.Q(headers__id=str(first)))


class OutboxQuerySet(MessageQuerySet):
    def of_task(self, task_id):
        """The messages of a Celery task that wait for their time: scheduled, or a retry. An index finds them."""
        return super().of_task(task_id).filter(available_at__isnull=False)

    def bulk_create(self, *args, **kwargs):
        with explained(connections[self._db or router.db_for_write(self.model)], NAME):
            return super().bulk_create(*args, **kwargs)


class OutboxMessage(Message):
    available_at = models.DateTimeField(null=True)

    objects = OutboxQuerySet.as_manager()

    class Meta:
        managed = False
        db_table = TABLE
        verbose_name = "waiting message"

    def save(self, *args, **kwargs):
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with explained(connections[using], NAME):
            super().save(*args, **kwargs)


class DeadLetter(Message):
    id = models.BigIntegerField(editable=False)
    failure_reason = models.TextField()
    last_error = models.TextField(null=True)
    attempts = models.IntegerField()
    dead_at = models.DateTimeField()

    objects = MessageQuerySet.as_manager()

    class Meta:
        managed = False
        db_table = DEAD_LETTER_TABLE
        verbose_name = "dead letter"

    def requeue(self):
        """Moves the message back to the outbox, as `cdc-relay resend` does. Needs DELETE on the table."""
        using = router.db_for_write(type(self), instance=self)
        with transaction.atomic(using), connections[using].cursor() as cursor:
            cursor.execute(_requeue(cursor), [self.id, self.message_id])
            return cursor.rowcount == 1


_COLUMNS = (
    "id, created_at, expires_at, message_id, schema_version, max_attempts, possible_duplicate, exchange, routing_key, "
    "ordering_key, coalesce_key, headers, properties, payload, payload_bytes, redacted_payload"
)
# The application's own columns that both tables have with the same name and type.
_EXTRA_COLUMNS = f"""
SELECT pg_catalog.quote_ident(d.attname) FROM pg_catalog.pg_attribute o JOIN pg_catalog.pg_attribute d
  ON d.attname = o.attname AND d.atttypid = o.atttypid AND d.atttypmod = o.atttypmod
WHERE o.attrelid = '{TABLE}'::regclass AND d.attrelid = '{DEAD_LETTER_TABLE}'::regclass AND o.attnum > 0
  AND NOT o.attisdropped AND NOT d.attisdropped AND concat(o.attgenerated, d.attgenerated, o.attidentity, d.attidentity) = ''
  AND o.attname <> ALL (string_to_array('{_COLUMNS}, attempts, last_error, available_at, failure_reason, dead_at', ', '))
ORDER BY d.attnum"""


def _requeue(cursor):
    cursor.execute(_EXTRA_COLUMNS)
    extra = "".join(", " + name.replace("%", "%%") for (name,) in cursor.fetchall())
    # available_at keeps the stream from publishing it ahead of older messages of its key. An expired message does not expire
    # again.
    return f"""
WITH dead AS (DELETE FROM {DEAD_LETTER_TABLE} WHERE id = %s AND message_id = %s RETURNING *)
INSERT INTO {TABLE} ({_COLUMNS}{extra}, attempts, available_at) OVERRIDING SYSTEM VALUE
SELECT {_COLUMNS.replace("expires_at", "CASE WHEN expires_at > now() THEN expires_at END")}{extra}, 0, now() FROM dead"""
