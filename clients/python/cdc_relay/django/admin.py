from contextlib import contextmanager, suppress
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.paginator import Paginator
from django.db import DatabaseError, connections, models, router, transaction
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.template.response import TemplateResponse
from django.utils.dateparse import parse_datetime
from django.utils.formats import localize
from django.utils.functional import cached_property
from django.utils.timezone import template_localtime

from . import operations
from .models import DEAD_LETTER_TABLE, NAME, TABLE, DeadLetter, OutboxMessage
from .tables import DENIED, UNDEFINED_COLUMN, UNDEFINED_TABLE, code, command, missing_grants


class BoundedPaginator(Paginator):
    """Counts at most operations.MOST rows: counting a million takes a second. Actions change no more rows either."""

    @cached_property
    def count(self):
        return self.object_list.order_by()[: operations.MOST].count()


class Values(admin.SimpleListFilter):
    """A filter by the values that the newest rows have. A list of all values would read the whole table."""

    def lookups(self, request, model_admin):
        newest = model_admin.get_queryset(request).values_list(f"shown_{self.parameter_name}", flat=True)[: operations.NEWEST]
        return [(value, value) for value in sorted({*newest, self.value()} - {None, ""})]

    def queryset(self, request, queryset):
        return queryset.filter(**{f"shown_{self.parameter_name}": self.value()}) if self.value() else queryset


class TaskFilter(Values):
    title = parameter_name = "task"


class ReasonFilter(Values):
    title, parameter_name = "failure reason", "failure_reason"


class StateFilter(admin.SimpleListFilter):
    """The states of `cdc-relay list`, and those that were rejected. Conditions on available_at use its index."""

    title = parameter_name = "state"
    expired, later, rejected = models.Q(expires_at__lte=Now()), models.Q(available_at__gt=Now()), models.Q(relay_attempts__gt=0)
    states = {
        "waiting": models.Q(available_at=None) & ~expired,
        "due": models.Q(available_at__lte=Now()) & ~expired,
        "retrying": later & rejected & ~expired,
        "scheduled": later & models.Q(relay_attempts=0) & ~expired,
        "expired": expired,
        "failing": models.Q(available_at__isnull=False) & rejected,
    }

    def lookups(self, request, model_admin):
        return [(name, name) for name in self.states]

    def queryset(self, request, queryset):
        return queryset.filter(self.states[self.value()]) if self.value() in self.states else queryset


def columns(*names):
    """Columns of the pages: the texts that get_queryset or get_object has read. Python does not have each time of Postgres."""

    def column(name):
        def show(message):
            value = getattr(message, f"shown_{name}")
            if value and name.endswith("_at"):
                with suppress(ValueError, OverflowError):
                    value = localize(template_localtime(parse_datetime(value))) or value
            return "-" if value is None else value

        show.__name__, show.admin_order_field = name, None if name in ("task", "state", "attempts") else name
        return show

    return tuple(map(column, names))


def texts(**sql):
    return {f"shown_{name}": RawSQL(expression, (), models.TextField()) for name, expression in sql.items()}


def with_keys(queryset, keys):
    """The rows with these keys: the pk of a row that was read for the pages."""
    found = models.Q(pk__in=())
    for key in keys:
        id, _, message_id = key.partition(".")
        with suppress(ValueError):
            found |= models.Q(relay_id=int(id), message_id=UUID(message_id))
    return queryset.filter(found)


class MessageAdmin(admin.ModelAdmin):
    """Shows messages. CDC_RELAY_SHOW_PAYLOAD and redacted_payload decide if payloads are shown."""

    change_list_template = "admin/cdc_relay/change_list.html"
    paginator = BoundedPaginator
    show_full_result_count = False  # the outbox can be large
    fields = columns(
        "message_id", "task", "exchange", "routing_key", "ordering_key", "headers", "properties", "payload", "created_at", "expires_at"
    )  # fmt: skip

    def get_queryset(self, request):
        t, fields = self.model._meta.db_table, self.model._meta.fields
        names = {"attempts", "last_error", *(f.name for f in fields if not isinstance(f, (models.JSONField, models.BinaryField)))}
        return super().get_queryset(request).only("message_id").annotate(
            relay_id=RawSQL(f"{t}.id", (), models.BigIntegerField()),
            **texts(task=operations.task(t), name=operations.name(t), **{name: operations.shown(f"{t}.{name}") for name in names}),
        )  # fmt: skip

    def get_object(self, request, object_id, from_field=None):
        """With the values that a list does not show. Celery repeats the arguments of a task in its headers."""
        t, shown, jsonb = self.model._meta.db_table, operations.shown, operations.SMALL_JSONB
        headers = f"CASE jsonb_typeof({t}.headers) WHEN 'object' THEN {t}.headers - ARRAY['argsrepr', 'kwargsrepr'] ELSE {t}.headers END"
        payload = f"coalesce(octet_length({t}.payload_bytes) || ' bytes'::text, {shown(f'{t}.payload', 100_000)})"
        if not getattr(settings, "CDC_RELAY_SHOW_PAYLOAD", False):
            payload = "'hidden: set CDC_RELAY_SHOW_PAYLOAD to show payloads'"
        return with_keys(self.get_queryset(request), [object_id]).annotate(**texts(
            headers=shown(f"{t}.headers", 100_000, jsonb, headers), properties=shown(f"{t}.properties", 100_000, jsonb),
            payload=f"CASE WHEN {t}.redacted_payload IS NULL THEN {payload} ELSE {shown(f'{t}.redacted_payload', 100_000)} END",
        )).first()  # fmt: skip

    def get_changelist_instance(self, request):
        changes = super().get_changelist_instance(request)
        changes.pk_attname = "pk"  # with the key of the row
        return changes

    def response_action(self, request, queryset):
        """Django asks for the chosen rows by pk, and their keys are no message_id."""
        rows = queryset.all()
        queryset.filter = lambda *q, **by: with_keys(rows, by["pk__in"]) if "pk__in" in by else rows.filter(*q, **by)
        return super().response_action(request, queryset)

    def get_search_results(self, request, queryset, search_term):
        """The id of a task or a message is found by an index. Any other search may read the whole table."""
        of_task = queryset.of_task(search_term.strip())
        return (of_task, False) if of_task.exists() else super().get_search_results(request, queryset, search_term)

    def _never(self, request, obj=None):
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never  # makes all fields read-only

    def changelist_view(self, request, extra_context=None):
        summary = operations.summary(connections[self.get_queryset(request).db]) if request.method == "GET" else None
        return self.explained(super().changelist_view, request, {**(extra_context or {}), "summary": summary})

    def change_view(self, request, *args, **kwargs):
        return self.explained(super().change_view, request, *args, **kwargs)

    def history_view(self, request, *args, **kwargs):
        return self.explained(super().history_view, request, *args, **kwargs)

    def explained(self, view, request, *args, **kwargs):
        """The view, or a page that says what to type, if a table, a column or a privilege is missing."""
        connection = connections[self.get_queryset(request).db]
        try:
            with transaction.atomic(connection.alias):
                return view(request, *args, **kwargs)
        except DatabaseError as error:
            if not (cure := cure_of(error, connection, [("SELECT", NAME), ("SELECT", DEAD_LETTER_TABLE)])):
                raise
            context = {**self.admin_site.each_context(request), "title": "The outbox cannot be read", "error": str(error), "cure": cure}
            return TemplateResponse(request, "admin/cdc_relay/problem.html", context, status=403 if code(error) == DENIED else 503)

    @contextmanager
    def changing(self, request, *needs):
        """A transaction on the database to write to. An error changes nothing, and the page says what to type."""
        connection = connections[router.db_for_write(self.model)]
        try:
            with transaction.atomic(connection.alias), connection.cursor() as cursor:
                yield cursor
        except DatabaseError as error:
            cure = cure_of(error, connection, needs)
            what = f"As the owner of the tables: {' '.join(cure)} " if cure else ""
            self.message_user(request, f"Nothing was changed. {what}Error: {error}", messages.ERROR)

    def log(self, request, flag, action, changed, model=None):
        """Logs who changed these messages: pairs of key and text. An error of the log undoes the change."""
        content_type = get_content_type_for_model(model or self.model)
        common = {"user_id": request.user.pk, "content_type": content_type, "action_flag": flag, "change_message": action}
        entries = [LogEntry(object_id=key, object_repr=text, **common) for key, text in changed]
        LogEntry.objects.bulk_create(entries, batch_size=5000)

    def tell(self, request, what, done, **others):
        """The count of the changed messages, and of the others with the reason."""
        if done or not any(others.values()):
            self.message_user(request, f"{what}: {done}", messages.SUCCESS)
        if not_done := [f"{reason.replace('_', ' ')}: {n}" for reason, n in others.items() if n]:
            self.message_user(request, f"Not {what.lower()}: {sum(others.values())} ({', '.join(not_done)})", messages.WARNING)


def permission(name):
    return lambda self, request: request.user.has_perm(f"cdc_relay.{name}")


def cure_of(error, connection, needs):
    """What to type after an error, or None."""
    verbs = {UNDEFINED_TABLE: "setup", UNDEFINED_COLUMN: "setup --tables-only"}
    if code(error) in verbs:
        return [command(connection, NAME, verbs[code(error)])]
    if code(error) == DENIED:
        with connection.cursor() as cursor:
            return missing_grants(cursor, needs)
    return None


@admin.register(OutboxMessage)
class OutboxMessageAdmin(MessageAdmin):
    list_display = columns("message_id", "task", "routing_key", "state", "created_at", "available_at", "attempts")
    list_filter = (StateFilter, TaskFilter)
    search_fields = ("message_id", "routing_key", "shown_task")
    ordering = (RawSQL(f"{TABLE}.id", ()).desc(),)  # newest first; created_at has no index
    fields = MessageAdmin.fields + columns("state", "available_at", "attempts", "last_error")
    actions = ("retry_now", "cancel")

    def get_queryset(self, request):
        """With the relay's own columns. They are no fields of the model, which would include them in each INSERT."""
        return super().get_queryset(request).annotate(
            relay_attempts=RawSQL(f"{TABLE}.attempts", (), models.IntegerField()),
            shown_state=models.Case(*(models.When(is_so, models.Value(name)) for name, is_so in StateFilter.states.items())),
        )  # fmt: skip

    has_retry_permission, has_cancel_permission = permission("change_outboxmessage"), permission("delete_outboxmessage")

    @admin.action(description="Retry now", permissions=["retry"])
    def retry_now(self, request, queryset):
        rejected, others = operations.choose(queryset, lambda available_at, attempts: available_at and attempts)
        with self.changing(request, ("SELECT, UPDATE", NAME)) as cursor:
            changed = operations.change(cursor, operations.RETRY_NOW, rejected)
            self.log(request, CHANGE, "Retry now", changed)
            self.tell(request, "Due now", len(changed), never_rejected=others, locked=len(rejected) - len(changed))

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel(self, request, queryset):
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request), "title": "Cancel messages", "opts": self.model._meta,
                "count": queryset[: operations.MOST].count(), "messages_to_cancel": queryset[:20], "checkbox": ACTION_CHECKBOX_NAME,
                "selected": request.POST.getlist(ACTION_CHECKBOX_NAME), "select_across": request.POST.get("select_across", "0"),
            }  # fmt: skip
            return TemplateResponse(request, "admin/cdc_relay/cancel.html", context)
        timed, others = operations.choose(queryset, lambda available_at, _: available_at)
        with self.changing(request, ("SELECT, UPDATE, DELETE", NAME)) as cursor:
            cancelled = operations.change(cursor, operations.CANCEL, timed)
            self.log(request, DELETION, "Cancel", [row[:2] for row in cancelled])
            self.tell(request, "Cancelled", len(cancelled), neither_scheduled_nor_retrying=others, locked=len(timed) - len(cancelled))
            if maybe_sent := sum(sent for _, _, sent in cancelled):
                self.message_user(request, f"Cancelled, but perhaps published before: {maybe_sent}", messages.WARNING)


@admin.register(DeadLetter)
class DeadLetterAdmin(MessageAdmin):
    list_display = columns("message_id", "task", "routing_key", "failure_reason", "attempts", "dead_at")
    list_filter = (ReasonFilter, TaskFilter)
    search_fields = ("message_id", "routing_key", "shown_task", "last_error")
    ordering = ("-dead_at",)
    fields = MessageAdmin.fields + columns("failure_reason", "last_error", "attempts", "dead_at")
    actions = ("requeue",)

    has_requeue_permission = permission("change_deadletter")

    @admin.action(description="Send back to the outbox", permissions=["requeue"])
    def requeue(self, request, queryset):
        """In the order of ids, and in one transaction: then messages of one ordering key keep their order."""
        sent_back, gone, errors = [], 0, []
        with self.changing(request, ("SELECT, DELETE", DEAD_LETTER_TABLE), ("INSERT", NAME)):
            for dead_letter in list(queryset.only("id", "message_id").order_by("id")[: operations.MOST]):
                try:
                    if dead_letter.requeue():
                        sent_back.append((dead_letter.pk, str(dead_letter)))
                    else:
                        gone += 1
                except DatabaseError as error:
                    if code(error) in (DENIED, UNDEFINED_TABLE, UNDEFINED_COLUMN):
                        raise
                    errors.append(f"{dead_letter}: {error}")
            self.log(request, DELETION, "Send back", sent_back)
            self.log(request, ADDITION, "Send back", sent_back, OutboxMessage)
            self.tell(request, "Sent back", len(sent_back), gone=gone, rejected_by_the_outbox=len(errors))
        if errors:
            hint = "`cdc-relay resend` gives a message a new id if another row has its id."
            self.message_user(request, f"{hint} First error: {errors[0]}", messages.ERROR)
