from django.contrib import admin, messages

from .models import DeadLetter, OutboxMessage


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
    list_display = ("message_id", "task", "routing_key", "created_at", "available_at")
    search_fields = ("message_id", "routing_key")
    fields = MessageAdmin.fields + ("available_at",)


@admin.register(DeadLetter)
class DeadLetterAdmin(MessageAdmin):
    list_display = ("message_id", "task", "routing_key", "failure_reason", "attempts", "dead_at")
    list_filter = ("failure_reason",)
    search_fields = ("message_id", "routing_key", "last_error")
    ordering = ("-dead_at",)
    fields = MessageAdmin.fields + ("failure_reason", "last_error", "attempts", "dead_at")
    actions = ("requeue",)

    def has_requeue_permission(self, request):
        """For users with the permission to change dead letters."""
        return request.user.has_perm("cdc_relay.change_deadletter")

    def requeue(self, request, queryset):
        sent = sum(dead_letter.requeue() for dead_letter in queryset.order_by("dead_at"))
        self.message_user(request, f"Sent back: {sent}", messages.SUCCESS)

    requeue.short_description = "Send back to the outbox"
    requeue.allowed_permissions = ("requeue",)
