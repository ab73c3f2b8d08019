-- github.com/Barsoomx/django-celery-outbox, models.py: the columns; serialization.py: the keys of options. The message
-- is that of Celery (amqp.py, send_task_message; docs.celeryq.dev, "Message Protocol", version 2).
usage: the table of django-celery-outbox
table: celery_outbox
-- Its own relay deletes sent rows.
waiting: true
-- Some versions lack these columns.
missing.schema_version: 1
missing.retries: 0
missing.retry_after: NULL::timestamptz
missing.updated_at: now()
missing.redacted_args: NULL::jsonb
missing.redacted_kwargs: NULL::jsonb
missing.sentry_trace_id: NULL::text
missing.sentry_baggage: NULL::text
-- What Celery looks up in its routes (celery/app/routes.py), and the route of tasks whose row has none.
task: coalesce(options ->> 'route_name', task_name)
queue: 'celery'
priority: NULL::integer
expires: CASE jsonb_typeof(options -> 'expires')
    WHEN 'number' THEN now() + make_interval(secs => (options ->> 'expires')::double precision)
    ELSE (options ->> 'expires')::timestamptz END
addressed: options ->> 'exchange' <> '' AND options ->> 'routing_key' <> ''
error: CASE WHEN schema_version <> 1 THEN 'schema_version ' || schema_version || ' of a task is not known' END
message_id: task_id
exchange: CASE WHEN addressed THEN options ->> 'exchange' ELSE '' END
routing_key: CASE WHEN addressed THEN options ->> 'routing_key' ELSE coalesce(nullif(options ->> 'queue', ''), queue) END
possible_duplicate: waited AND updated_at IS NOT NULL
created_at: created_at
-- The message waits in the outbox, and not in a worker. A retry also waits for its time.
available_at: greatest((options ->> 'eta')::timestamptz, retry_after)
attempts: retries
expires_at: expires
payload: json_build_array(args, kwargs, json_build_object('callbacks', options -> 'link',
    'errbacks', options -> 'link_error', 'chain', options -> 'chain', 'chord', options -> 'chord'))
headers: jsonb_build_object('lang', 'py', 'task', task_name, 'id', task_id, 'shadow', options -> 'shadow', 'eta', NULL,
    'expires', to_char(expires AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
    'group', options -> 'group_id', 'group_index', options -> 'group_index',
    'retries', coalesce(options -> 'retries', '0'),
    'timelimit', jsonb_build_array(options -> 'time_limit', options -> 'soft_time_limit'),
    'root_id', coalesce(options ->> 'root_id', task_id), 'parent_id', options -> 'parent_id',
    'argsrepr', coalesce(options ->> 'argsrepr', left(coalesce(redacted_args, args)::text, 1024)),
    'kwargsrepr', coalesce(options ->> 'kwargsrepr', left(coalesce(redacted_kwargs, kwargs)::text, 1024)),
    'origin', 'cdc-relay', 'ignore_result', coalesce(options -> 'ignore_result', 'false'),
    'replaced_task_nesting', coalesce(options -> 'replaced_task_nesting', '0'))
    || jsonb_strip_nulls(jsonb_build_object('sentry-trace', sentry_trace_id, 'baggage', sentry_baggage))
properties: jsonb_strip_nulls(jsonb_build_object('correlation_id', task_id, 'content_type', 'application/json',
    'content_encoding', 'utf-8', 'priority', coalesce(options -> 'priority', to_jsonb(priority::integer)),
    'expiration', CASE jsonb_typeof(options -> 'expiration')
        WHEN 'number' THEN round((options ->> 'expiration')::numeric * 1000) END))
-- What the application masks in the one place is hidden in the other.
redacted_payload: CASE WHEN options ?| '{argsrepr,kwargsrepr}' OR redacted_args IS NOT NULL OR redacted_kwargs IS NOT NULL
    THEN json_build_array(coalesce(redacted_args, options -> 'argsrepr', args),
        coalesce(redacted_kwargs, options -> 'kwargsrepr', kwargs)) END
