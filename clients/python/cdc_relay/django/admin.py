from contextlib import contextmanager

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.core.paginator import Paginator
from django.db import DatabaseError, connections, models, router, transaction
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.template.response import TemplateResponse
from django.utils.functional import cached_property

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
        found = operations.values(connections[model_admin.get_queryset(request).db], self.sql)
        return [(value, value) for value in sorted({*found, *filter(None, [self.value()])})]


class TaskFilter(Values):
    title = parameter_name = "task"
    sql = f"SELECT headers ->> 'task' FROM {TABLE} ORDER BY id DESC"

    def queryset(self, request, queryset):
        return queryset.filter(headers__task=self.value()) if self.value() else queryset


class DeadTaskFilter(TaskFilter):
    sql = f"SELECT headers ->> 'task' FROM {DEAD_LETTER_TABLE} ORDER BY dead_at DESC"


class ReasonFilter(Values):
    title, parameter_name = "failure reason", "failure_reason"
    sql = f"SELECT failure_reason FROM {DEAD_LETTER_TABLE} ORDER BY dead_at DESC"

    def queryset(self, request, queryset):
        return queryset.filter(failure_reason=self.value()) if self.value() else queryset


class StateFilter(admin.SimpleListFilter):
    """The states of `cdc-relay list`, and those that were rejected. Conditions on available_at use its index."""

    title = parameter_name = "state"
    expired, later, rejected = models.Q(expires_at__lte=Now()), models.Q(available_at__gt=Now()), models.Q(relay_attempts__gt=0)
    states = {
        "waiting": models.Q(available_at=None) & ~expired,
        "due": models.Q(available_at__lte=Now()) & ~expired,
        "retrying": later & rejected & ~expired,
        "scheduled": later & models.Q(relay_attempts=0, relay_maybe_sent=False) & ~expired,
        "unconfirmed": later & models.Q(relay_attempts=0, relay_maybe_sent=True) & ~expired,
        "expired": expired,
        "failing": models.Q(available_at__isnull=False) & rejected,
    }

    def lookups(self, request, model_admin):
        return [(name, name) for name in self.states]

    def queryset(self, request, queryset):
        return queryset.filter(self.states[self.value()]) if self.value() in self.states else queryset


class MessageAdmin(admin.ModelAdmin):
    """Shows messages. CDC_RELAY_SHOW_PAYLOAD and redacted_payload decide if payloads are shown."""

    change_list_template = "admin/cdc_relay/change_list.html"
    paginator = BoundedPaginator
    show_full_result_count = False  # the outbox can be large
    fields = (
        "message_id", "task", "exchange", "routing_key", "ordering_key", "headers_without_arguments", "properties",
        "shown_payload", "created_at", "expires_at",
    )  # fmt: skip

    def get_search_results(self, request, queryset, search_term):
        """The id of a task or a message is found by an index. Any other search may read the whole table."""
        of_task = queryset.of_task(search_term.strip())
        return (of_task, False) if of_task.exists() else super().get_search_results(request, queryset, search_term)

    def headers_without_arguments(self, message):
        """Celery repeats the arguments of a task in its headers."""
        return {key: value for key, value in (message.headers or {}).items() if key not in ("argsrepr", "kwargsrepr")}

    headers_without_arguments.short_description = "headers"

    def has_add_permission(self, request):
        return False

    def has_change_permission(self, request, obj=None):
        return False  # makes all fields read-only

    def has_delete_permission(self, request, obj=None):
        return False

    def changelist_view(self, request, extra_context=None):
        summary = operations.summary(connections[self.get_queryset(request).db]) if request.method == "GET" else None
        view = super().changelist_view
        return self.explained(request, lambda: view(request, {**(extra_context or {}), "summary": summary}))

    def change_view(self, request, *args, **kwargs):
        view = super().change_view
        return self.explained(request, lambda: view(request, *args, **kwargs))

    def explained(self, request, view):
        """A page that says what to type, if a table, a column or a privilege is missing."""
        connection = connections[self.get_queryset(request).db]
        try:
            with transaction.atomic(connection.alias):
                return view()
        except DatabaseError as error:
            if not (cure := cure_of(error, connection, [("SELECT", NAME), ("SELECT", DEAD_LETTER_TABLE)])):
                raise
            context = {**self.admin_site.each_context(request), "title": "The outbox cannot be read", "error": str(error), "cure": cure}
            status = 403 if code(error) == DENIED else 503
            return TemplateResponse(request, "admin/cdc_relay/problem.html", context, status=status)

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
        """Logs who changed these messages: pairs of message_id and text. An error of the log undoes the change."""
        common = {
            "user_id": request.user.pk, "content_type": get_content_type_for_model(model or self.model), "action_flag": flag,
            "change_message": action,
        }  # fmt: skip
        entries = [LogEntry(object_id=str(id), object_repr=f"{text} {id}"[:200], **common) for id, text in changed]
        LogEntry.objects.bulk_create(entries, batch_size=5000)

    def tell(self, request, what, done, **others):
        """The count of the changed messages, and of the others with the reason."""
        if done or not any(others.values()):
            self.message_user(request, f"{what}: {done}", messages.SUCCESS)
        if not_done := [f"{reason.replace('_', ' ')}: {n}" for reason, n in others.items() if n]:
            self.message_user(request, f"Not {what.lower()}: {sum(others.values())} ({', '.join(not_done)})", messages.WARNING)


def cure_of(error, connection, needs):
    """What to type after an error, or None."""
    if code(error) == UNDEFINED_TABLE:
        return [command(connection, NAME)]
    if code(error) == UNDEFINED_COLUMN:
        return [command(connection, NAME, "setup --tables-only")]
    if code(error) == DENIED:
        with connection.cursor() as cursor:
            return missing_grants(cursor, needs)
    return None


@admin.register(OutboxMessage)
class OutboxMessageAdmin(MessageAdmin):
    list_display = ("message_id", "task", "routing_key", "state", "created_at", "available_at", "attempts")
    list_filter = (StateFilter, TaskFilter)
    search_fields = ("message_id", "routing_key", "headers__task")
    ordering = (RawSQL(f"{TABLE}.id", ()).desc(),)  # newest first; created_at has no index
    fields = MessageAdmin.fields + ("state", "available_at", "attempts", "last_error")
    actions = ("retry_now", "cancel")

    def get_queryset(self, request):
        """With the relay's own columns. They are no fields of the model, which would include them in each INSERT."""
        return super().get_queryset(request).annotate(
            relay_id=RawSQL(f"{TABLE}.id", (), models.BigIntegerField()),
            relay_attempts=RawSQL(f"{TABLE}.attempts", (), models.IntegerField()),
            relay_last_error=RawSQL(f"{TABLE}.last_error", (), models.TextField()),
            relay_maybe_sent=RawSQL(f"coalesce({TABLE}.possible_duplicate, false)", (), models.BooleanField()),
            relay_state=RawSQL(operations.STATE, (), models.TextField()),
        )  # fmt: skip

    def state(self, message):
        return message.relay_state

    def attempts(self, message):
        return message.relay_attempts

    def last_error(self, message):
        return message.relay_last_error

    def has_retry_permission(self, request):
        """For users with the permission to change waiting messages."""
        return request.user.has_perm("cdc_relay.change_outboxmessage")

    def has_cancel_permission(self, request):
        """For users with the permission to delete waiting messages."""
        return request.user.has_perm("cdc_relay.delete_outboxmessage")

    def retry_now(self, request, queryset):
        rejected, others = operations.choose(queryset, lambda row: row.available_at and row.relay_attempts)
        with self.changing(request, ("SELECT, UPDATE", NAME)) as cursor:
            changed = operations.change(cursor, operations.RETRY_NOW, rejected)
            self.log(request, CHANGE, "Retry now", changed)
            self.tell(request, "Due now", len(changed), never_rejected=others, being_published=len(rejected) - len(changed))

    retry_now.short_description = "Retry now"
    retry_now.allowed_permissions = ("retry",)

    def cancel(self, request, queryset):
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request), "title": "Cancel messages", "opts": self.model._meta,
                "count": queryset[: operations.MOST].count(), "messages_to_cancel": queryset[:20], "checkbox": ACTION_CHECKBOX_NAME,
                "selected": request.POST.getlist(ACTION_CHECKBOX_NAME), "select_across": request.POST.get("select_across", "0"),
            }  # fmt: skip
            return TemplateResponse(request, "admin/cdc_relay/cancel.html", context)
        timed, others = operations.choose(queryset, lambda row: row.available_at)
        with self.changing(request, ("SELECT, UPDATE, DELETE", NAME)) as cursor:
            cancelled = operations.change(cursor, operations.CANCEL, timed)
            self.log(request, DELETION, "Cancel", [row[:2] for row in cancelled])
            self.tell(request, "Cancelled", len(cancelled), neither_scheduled_nor_retrying=others, being_published=len(timed) - len(cancelled))
            if maybe_sent := sum(sent for _, _, sent in cancelled):
                self.message_user(request, f"Cancelled, but perhaps published before: {maybe_sent}", messages.WARNING)

    cancel.short_description = "Cancel"
    cancel.allowed_permissions = ("cancel",)


@admin.register(DeadLetter)
class DeadLetterAdmin(MessageAdmin):
    list_display = ("message_id", "task", "routing_key", "failure_reason", "attempts", "dead_at")
    list_filter = (ReasonFilter, DeadTaskFilter)
    search_fields = ("message_id", "routing_key", "headers__task", "last_error")
    ordering = ("-dead_at",)
    fields = MessageAdmin.fields + ("failure_reason", "last_error", "attempts", "dead_at")
    actions = ("requeue",)

    def has_requeue_permission(self, request):
        """For users with the permission to change dead letters."""
        return request.user.has_perm("cdc_relay.change_deadletter")

    def requeue(self, request, queryset):
        """In the order of ids, and in one transaction: then messages of one ordering key keep their order."""
        sent_back, gone, errors = [], 0, []
        with self.changing(request, ("SELECT, DELETE", DEAD_LETTER_TABLE), ("INSERT", NAME)):
            for dead_letter in list(queryset.order_by(RawSQL(f"{DEAD_LETTER_TABLE}.id", ()))[: operations.MOST]):
                try:
                    if dead_letter.requeue():
                        sent_back.append((dead_letter.message_id, dead_letter.task or dead_letter.routing_key))
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

    requeue.short_description = "Send back to the outbox"
    requeue.allowed_permissions = ("requeue",)
