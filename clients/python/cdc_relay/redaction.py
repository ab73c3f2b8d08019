"""The arguments of tasks as people and tools may see them: `redact` of install."""
import inspect
import json
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from fnmatch import fnmatchcase
from math import isfinite

from celery.utils.saferepr import saferepr

HIDDEN = "[redacted]"
# Celery's tasks that call another task for each item of `it`.
FOR_EACH = ("celery.map", "celery.starmap", "celery.chunks")
MAX_REPR = 1024  # characters
importing = ContextVar("cdc_relay_importing", default=False)


def import_tasks(app):
    """Imports the tasks that a worker of the app finds. For Django, Celery then runs all system checks, and those call this."""
    if not importing.get():
        token = importing.set(True)
        try:
            app.loader.import_default_modules()
        finally:
            importing.reset(token)


class Redaction:
    def __init__(self, app, redact):
        if isinstance(redact, Mapping):
            if any(isinstance(names, str) for names in redact.values()):
                raise TypeError("redact is a mapping of patterns to lists of names, not to strings")
        elif not callable(redact):
            raise TypeError("redact is a function or a mapping")
        self.app, self.redact, self.imported = app, redact, False

    def apply(self, name, message, explicit):
        """Redacts the message's headers and event, and returns its redacted payload, or None if no pattern matches.

        `explicit` are the options of the call: an argsrepr or kwargsrepr among them stays as it is.
        """
        try:
            view = _View(self.by_name if isinstance(self.redact, Mapping) else self.by_function)
            args, kwargs = view.task(name, message.body[0], message.body[1])
            payload = json.dumps(_plain([args, kwargs, view.copy(message.body[2])]))
            texts = {
                "args": explicit.get("argsrepr") or saferepr(tuple(args), self.app.amqp.argsrepr_maxsize),
                "kwargs": explicit.get("kwargsrepr") or saferepr(kwargs, self.app.amqp.kwargsrepr_maxsize),
            }
            failure = None
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__} at {frame.filename}:{frame.lineno}"
        if failure:  # raised here, because the first error may contain what is secret
            raise RuntimeError(f"redact failed for task {name}: {failure}. The task was not sent. redact must return (args, kwargs)")
        if not view.matched:
            return None
        message.headers.update(argsrepr=texts["args"], kwargsrepr=texts["kwargs"])
        if message.sent_event:
            message.sent_event.update(texts)
        return payload

    def by_function(self, name, args, kwargs, partial):
        args, kwargs = self.redact(name, args, kwargs)
        return list(args), dict(kwargs)

    def by_name(self, name, args, kwargs, partial):
        """Hides the listed arguments, and positional ones whose names are not known."""
        lists = [names for pattern, names in self.redact.items() if fnmatchcase(name, pattern)]
        if not lists:
            return ([HIDDEN] * len(args), dict.fromkeys(kwargs, HIDDEN)) if self.misspelt() and not name.startswith("celery.") else None
        hidden, parameters = set().union(*lists), self.parameters(name)
        names, any_name = {p.name for p in parameters}, any(p.kind == p.VAR_KEYWORD for p in parameters)
        if names and not any_name and not names.issuperset(self.redact.get(name, ())):
            return [HIDDEN] * len(args), dict.fromkeys(kwargs, HIDDEN)  # a parameter was renamed
        # Celery puts results of earlier tasks before the arguments of a partial signature.
        known = [] if partial else [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        shown = [n < len(known) and known[n] not in hidden for n in range(len(args))]
        return (
            [value if show else HIDDEN for value, show in zip(args, shown)],
            {key: HIDDEN if key in hidden else value for key, value in kwargs.items()},
        )

    def misspelt(self):
        """Names of tasks in the mapping that no task has. Each task that no pattern matches may be the one that is meant."""
        found = [name for name in self.redact if not set(name) & set("*?[") and name not in self.app.tasks]
        if found and not self.imported:
            self.imported = True
            try:
                import_tasks(self.app)
            except Exception:
                pass  # a worker reports it; the names stay unknown
            found = self.misspelt()
            if found:
                warnings.warn(f"redact: no task is named {', '.join(found)}, so all arguments are hidden of tasks that no other pattern matches")
        return found

    def unknown_arguments(self, pattern, names):
        """Arguments listed for a pattern that none of these tasks has, if the pattern matches some."""
        found = [self.parameters(name) for name in names if fnmatchcase(name, pattern)]
        if not found or any(p.kind == p.VAR_KEYWORD for parameters in found for p in parameters):
            return []
        return sorted(set(self.redact[pattern]).difference(p.name for parameters in found for p in parameters))

    def parameters(self, name):
        """The parameters of the task; none if it is not known here."""
        task = self.app.tasks.get(name)
        if task is None:
            return []
        # __header__ has the parameters of the function itself, whatever wraps task.run.
        return list(inspect.signature(getattr(task, "__header__", None) or task.run, follow_wrapped=False).parameters.values())


class _View:
    """A copy of a message's arguments, so that a function that changes them does not change the message."""

    def __init__(self, hide):
        self.hide, self.matched = hide, False

    def task(self, name, args, kwargs, partial=False):
        if name in FOR_EACH and isinstance(kwargs.get("task"), Mapping):
            called = kwargs["task"]["task"]
            return self.copy(args), {**self.copy(kwargs), "it": [self.item(name, called, item) for item in kwargs["it"]]}
        args, kwargs = self.copy(args), self.copy(kwargs)
        hidden = self.hide(name, args, kwargs, partial)
        self.matched = self.matched or hidden is not None
        return hidden or (args, kwargs)

    def item(self, name, called, item):
        args, _ = self.task(called, [item] if name == "celery.map" else item, {})
        return args[0] if name == "celery.map" else args

    def copy(self, value):
        """A copy in which signatures of tasks are redacted."""
        if isinstance(value, Mapping):
            if not _is_signature(value):
                return {key: self.copy(inner) for key, inner in value.items()}
            args, kwargs = self.task(value["task"], value["args"], value["kwargs"], partial=not value.get("immutable"))
            others = {key: self.copy(inner) for key, inner in value.items() if key not in ("args", "kwargs")}
            return {**others, "args": args, "kwargs": kwargs}
        return [self.copy(inner) for inner in value] if _is_list(value) else deepcopy(value)


def _is_signature(value):
    tables = isinstance(value.get("kwargs"), Mapping) and isinstance(value.get("options"), Mapping)
    return tables and isinstance(value.get("task"), str) and _is_list(value.get("args"))


def _is_list(value):
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def _plain(value):
    """JSON by the standard, of any value."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if _is_list(value):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (str, int)) or isinstance(value, float) and isfinite(value):
        return value
    return saferepr(value, MAX_REPR)
