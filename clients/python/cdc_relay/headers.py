"""Headers of a task: the values that a row can carry, and the context of the sender."""
import json
import re
import sys
from collections.abc import Mapping
from datetime import date, time
from decimal import Decimal
from uuid import UUID

from celery import Celery, current_task
from celery.app.task import Context

# Escaped backslashes and surrogate pairs (kept), NUL, and lone surrogates.
ESCAPES = re.compile(r"(\\\\|\\ud[89ab]..\\ud[c-f]..)|\\u0000|\\ud[89a-f]..")
# With context="*": the names of the context variables in a message, for the next tasks.
NAMES = "cdc_relay_context"
RESERVED = {"lang", "task", "argsrepr", "kwargsrepr", "compression", "stamps", "stamped_headers", "CC", "BCC", NAMES}
MAX_CONTEXT = 4096  # bytes of JSON: all headers must fit into one AMQP frame


def jsonb(kind, values):
    """JSON of headers or properties, with a replacement character for what jsonb cannot store.

    Raises TypeError or ValueError for what neither JSON nor AMQP can carry.
    """
    carried = _carried(values, kind)
    return ESCAPES.sub(lambda found: found[1] or r"\ufffd", json.dumps(carried))


def _carried(value, where):
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, float)):
        if not -(2**63) <= value < 2**63 or isinstance(value, int) and value < -(2**53):
            raise ValueError(f"{where}: a header cannot carry this number: send it as text")
        return float(value) if value < 0 else value  # py-amqp, and so Celery, reads a negative int64 as a positive one
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_carried(inner, f"{where}[{n}]") for n, inner in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _carried(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, Mapping):
        raise TypeError(f"{where}: the keys of a table are text")
    hint = "decode them, or send them as an argument" if isinstance(value, (bytes, bytearray, memoryview)) else "send it as text"
    raise TypeError(f"{where}: a header cannot carry {type(value).__name__}: {hint}")


def check_names(context):
    """Raises ValueError for a name that a context variable cannot have."""
    for name in context:
        if _is_reserved(name):
            raise ValueError(f"context: {name!r} is a header of Celery or RabbitMQ itself")


def _is_reserved(name):
    return name in RESERVED or hasattr(Context, name)


def add_context(headers, names):
    """Adds the context of this process, or else of the running task, for its retries and next tasks."""
    everything, request = "*" in names, current_task.request if current_task else {}
    found = _of_process() if names else {}
    for name in request.get(NAMES) or () if everything else names:
        found.setdefault(name, request.get(name))
    wanted = [name for name in found if not _is_reserved(name)] if everything else names
    sent = {name: _as_context(found[name]) for name in wanted if found.get(name) is not None}
    sent = {name: value for name, value in sent.items() if len(json.dumps(value)) <= MAX_CONTEXT}
    if everything and sent:
        headers.setdefault(NAMES, list(sent))
    sentry = _of_sentry()
    for name, value in {**sentry, **sent}.items():
        headers.setdefault(name, value)
    if sentry:  # its integration in a worker reads them from this table, which replaces Celery's own request.headers
        own = {name: value for name, value in headers.items() if not _is_reserved(name)}
        headers["headers"] = {**own, **(headers.get("headers") or {})}


def _as_context(value):
    try:
        return _carried(value, "context")
    except (TypeError, ValueError, RecursionError):
        return str(value)  # nobody meant it as a header


def _of_process():
    found = {}
    if "structlog" in sys.modules:
        from structlog.contextvars import get_contextvars

        found.update(get_contextvars())
    if "opentelemetry" in sys.modules:
        from opentelemetry.propagate import inject

        inject(found)
    return found


def _of_sentry():
    """The trace of Sentry's SDK 2, unless its own Celery integration sets or omits it."""
    sdk = sys.modules.get("sentry_sdk")
    if not hasattr(sdk, "get_client") or not sdk.get_client().is_active():
        return {}
    integration = sdk.get_client().get_integration("celery")
    if integration and (hasattr(Celery.send_task, "__wrapped__") or not integration.propagate_traces):
        return {}
    found = {"sentry-trace": sdk.get_traceparent(), "baggage": sdk.get_baggage()}
    return {name: value for name, value in found.items() if value}
