from django.contrib import admin, messages
from django.db import DatabaseError, models
from django.db.models.expressions import RawSQL

from .models import TABLE, DeadLetter, OutboxMessage


class MessageAdmin(admin.ModelAdmin):
    """Shows messages. CDC_RELAY_SHOW_PAYLOAD and redacted_payload decide if payloads are shown."""

    ordering = ("-created_at",)
    show_full_result_count = False  # the outbox can be large
    fields = (
        "message_id", "task", "exchange", "routing_key", "ordering_key", "headers_without_arguments", "properties",
        "shown_payload", "created_at", "expires_at",
    )  # fmt: skip

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


@admin.register(OutboxMessage)
class OutboxMessageAdmin(MessageAdmin):
    list_display = ("message_id", "task", "routing_key", "created_at", "available_at", "attempts")
    search_fields = ("message_id", "routing_key", "headers__task")
    fields = MessageAdmin.fields + ("available_at", "attempts", "last_error")

    def get_queryset(self, request):
        """With the relay's own columns. They are no fields of the model, which would include them in each INSERT."""
        return super().get_queryset(request).annotate(
            relay_attempts=RawSQL(f"{TABLE}.attempts", (), models.IntegerField()),
            relay_last_error=RawSQL(f"{TABLE}.last_error", (), models.TextField()),
        )  # fmt: skip

    def attempts(self, message):
        return message.relay_attempts

    def last_error(self, message):
        return message.relay_last_error


@admin.register(DeadLetter)
class DeadLetterAdmin(MessageAdmin):
    list_display = ("message_id", "task", "routing_key", "failure_reason", "attempts", "dead_at")
    list_filter = ("failure_reason",)
    search_fields = ("message_id", "routing_key", "headers__task", "last_error")
    ordering = ("-dead_at",)
    fields = MessageAdmin.fields + ("failure_reason", "last_error", "attempts", "dead_at")
    actions = ("requeue",)

    def has_requeue_permission(self, request):
        """For users with the permission to change dead letters."""
        return request.user.has_perm("cdc_relay.change_deadletter")

    def requeue(self, request, queryset):
        sent, errors = 0, []
        for dead_letter in queryset.order_by("dead_at"):
            try:
                sent += dead_letter.requeue()
            except DatabaseError as error:
                errors.append(f"{dead_letter}: {error}")
        if sent or not errors:
            self.message_user(request, f"Sent back: {sent}", messages.SUCCESS)
        if errors:
            hint = "`cdc-relay dead-letter requeue` gives a message a new id if another row has its id."
            self.message_user(request, f"Not sent back: {len(errors)}. {hint} First error: {errors[0]}", messages.ERROR)

    requeue.short_description = "Send back to the outbox"
    requeue.allowed_permissions = ("requeue",)
