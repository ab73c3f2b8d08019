{{define "variables"}}
    message_id uuid; exchange text; routing_key text; ordering_key text; coalesce_key text;
    payload json; payload_bytes bytea; headers jsonb; properties jsonb; redacted_payload json;
    created_at timestamptz; available_at timestamptz; expires_at timestamptz; max_attempts smallint;
    attempts integer; possible_duplicate boolean;
    body text; options jsonb; envelope json; replanned boolean;
{{- end}}

{{define "convert"}}
        replanned := false;
        LOOP
            message_id := NULL; exchange := NULL; routing_key := NULL; ordering_key := NULL; coalesce_key := NULL;
            payload := NULL; payload_bytes := NULL; headers := NULL; properties := NULL; redacted_payload := NULL;
            created_at := NULL; available_at := NULL; expires_at := NULL; max_attempts := NULL; attempts := NULL;
            possible_duplicate := {{if and (eq .Layout "celery-outbox") (has "updated_at")}}r."updated_at" IS NOT NULL{{else}}{{.Moves}}{{end}};
            BEGIN -- Nothing in this block writes, so it costs no transaction id.
{{- range .Assignments}}
                {{.Variable}} := {{.Expression}};
{{- end}}
{{- if eq .Layout "celery-outbox"}}{{template "celery" .}}{{end}}
{{- if .Body}}
                body := {{.Body}};
                BEGIN
                    payload := body::json;
                EXCEPTION WHEN OTHERS THEN -- not JSON
                    payload_bytes := convert_to(body, 'UTF8');
                    properties := '{"content_type": "text/plain"}' || coalesce(properties, '{}');
                END;
{{- end}}
{{- if eq .Layout "watermill"}}{{template "watermill" .}}{{end}}
{{- if eq .Layout "cap"}}{{template "cap" .}}{{end}}
{{- if eq .Layout "namastack"}}{{template "namastack" .}}{{end}}
                IF payload IS NULL AND payload_bytes IS NULL THEN
                    payload_bytes := ''; -- a row without a body is a message with an empty one
                END IF;
                IF octet_length(ordering_key) > 2684 THEN
                    ordering_key := md5(ordering_key); -- more than the index takes
                END IF;
                IF octet_length(coalesce_key) + coalesce(octet_length(ordering_key), 0) > 2600 THEN -- as one entry of an index
                    coalesce_key := CASE WHEN octet_length(ordering_key) > 2500 THEN NULL ELSE md5(coalesce_key) END;
                END IF;
                EXIT;
            EXCEPTION WHEN OTHERS THEN
                IF SQLSTATE = '42804' AND NOT replanned THEN -- a column has another type since this session has planned the expressions
                    DISCARD PLANS;
                    replanned := true;
                    CONTINUE;
                END IF;
                -- The relay makes it a dead letter, since headers must be an object: with the reason and the whole row.
                payload := to_json(r); payload_bytes := NULL; headers := to_jsonb('cdc-relay adopt: ' || SQLERRM);
                ordering_key := NULL; coalesce_key := NULL; properties := NULL; redacted_payload := NULL; available_at := NULL; expires_at := NULL;
                max_attempts := NULL; attempts := NULL;
                EXIT;
            END;
        END LOOP;
        INSERT INTO {{.Outbox}} (message_id, exchange, routing_key, ordering_key, coalesce_key, payload, payload_bytes,
            headers, properties, redacted_payload, created_at, available_at, expires_at, max_attempts, attempts, possible_duplicate)
        VALUES (coalesce(message_id, gen_random_uuid()), exchange, coalesce(routing_key, ''), ordering_key, coalesce_key, payload, payload_bytes,
            nullif(headers, '{}'), nullif(properties, '{}'), redacted_payload, coalesce(created_at, now()), available_at, expires_at, max_attempts,
            coalesce(attempts, 0), nullif(possible_duplicate, false));
{{- end}}

{{define "shown"}}{{if has (print "redacted_" .)}}coalesce(r."redacted_{{.}}", r."{{.}}"){{else}}r."{{.}}"{{end}}{{end}}

{{define "celery"}}{{$redacted := and (has "redacted_args") (has "redacted_kwargs")}}
            IF {{column "schema_version" "1"}} <> 1 THEN
                RAISE EXCEPTION 'schema_version % of a task is not known', {{column "schema_version" "1"}};
            END IF;
            options := r.options;
            message_id := {{.TaskUUID}};
            -- As Celery publishes (amqp.py, send_task_message): by the default exchange, unless exchange and routing key are set.
            exchange := ''; routing_key := coalesce(nullif(options ->> 'queue', ''), {{.Queue}});
            IF options ->> 'exchange' <> '' AND options ->> 'routing_key' <> '' THEN
                exchange := options ->> 'exchange'; routing_key := options ->> 'routing_key';
            END IF;
            created_at := r.created_at;
            -- The message waits in the outbox, and not in a worker. A retry also waits for its time.
            available_at := greatest((options ->> 'eta')::timestamptz{{with column "retry_after" ""}}, {{.}}{{end}});
            attempts := {{column "retries" "0"}};
            -- The other relay computes it when it publishes.
            expires_at := CASE jsonb_typeof(options -> 'expires')
                WHEN 'number' THEN now() + make_interval(secs => (options ->> 'expires')::double precision)
                ELSE (options ->> 'expires')::timestamptz END;
            payload := json_build_array(r.args, r.kwargs, json_build_object('callbacks', options -> 'link',
                'errbacks', options -> 'link_error', 'chain', options -> 'chain', 'chord', options -> 'chord'));
            -- Message protocol 2 (docs.celeryq.dev, "Message Protocol").
            headers := jsonb_build_object('lang', 'py', 'task', r.task_name, 'id', r.task_id, 'shadow', options -> 'shadow', 'eta', NULL,
                'expires', to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
                'group', options -> 'group_id', 'group_index', options -> 'group_index', 'retries', coalesce(options -> 'retries', '0'),
                'timelimit', jsonb_build_array(options -> 'time_limit', options -> 'soft_time_limit'),
                'root_id', coalesce(options ->> 'root_id', r.task_id), 'parent_id', options -> 'parent_id',
                'argsrepr', coalesce(options ->> 'argsrepr', left({{template "shown" "args"}}::text, 1024)),
                'kwargsrepr', coalesce(options ->> 'kwargsrepr', left({{template "shown" "kwargs"}}::text, 1024)), 'origin', 'cdc-relay',
                'ignore_result', coalesce(options -> 'ignore_result', 'false'), 'replaced_task_nesting', coalesce(options -> 'replaced_task_nesting', '0'))
                || jsonb_strip_nulls(jsonb_build_object({{if has "sentry_trace_id"}}'sentry-trace', r."sentry_trace_id", 'baggage', r."sentry_baggage"{{end}}));
            properties := jsonb_strip_nulls(jsonb_build_object('correlation_id', r.task_id, 'content_type', 'application/json',
                'content_encoding', 'utf-8', 'priority', coalesce(options -> 'priority', to_jsonb(({{.Priority}})::integer)),
                'expiration', CASE jsonb_typeof(options -> 'expiration') WHEN 'number' THEN round((options ->> 'expiration')::numeric * 1000) END));
            -- What the application masks in the one place is hidden in the other.
            IF options ?| '{argsrepr,kwargsrepr}'{{if $redacted}} OR r.redacted_args IS NOT NULL OR r.redacted_kwargs IS NOT NULL{{end}} THEN
                redacted_payload := json_build_array(coalesce({{if $redacted}}r.redacted_args, {{end}}options -> 'argsrepr', r.args),
                    coalesce({{if $redacted}}r.redacted_kwargs, {{end}}options -> 'kwargsrepr', r.kwargs));
            END IF;
{{- end}}

{{define "decode"}}
                BEGIN
                    payload := convert_from(payload_bytes, 'UTF8')::json;
                    payload_bytes := NULL;
                EXCEPTION WHEN OTHERS THEN
                    NULL;
                END;
{{- end}}

{{define "watermill"}}
            IF payload_bytes IS NOT NULL THEN -- a column of type bytea, mostly with JSON in it
{{- template "decode"}}
            END IF;
            IF json_typeof(payload) = 'object' AND ARRAY(SELECT k COLLATE "C" FROM json_object_keys(payload) k ORDER BY 1) = '{destination_topic,metadata,payload,uuid}' THEN
                envelope := payload; -- of the forwarder
                routing_key := envelope ->> 'destination_topic';
                message_id := {{.EnvelopeUUID}};
                headers := CASE json_typeof(envelope -> 'metadata') WHEN 'object' THEN (envelope -> 'metadata')::text::jsonb ELSE '{}' END
                    || jsonb_build_object('_watermill_message_uuid', envelope ->> 'uuid');
                payload := NULL;
                payload_bytes := decode(coalesce(envelope ->> 'payload', ''), 'base64');
{{- template "decode"}}
            END IF;
            -- github.com/ThreeDotsLabs/watermill, components/delay/delay.go
            available_at := coalesce(available_at, (headers ->> '_watermill_delayed_until')::timestamptz);
{{- end}}

{{define "cap"}}
            envelope := payload; -- Content is {"Headers": {…}, "Value": …}, with small letters if the application says so
            IF json_typeof(coalesce(envelope -> 'Headers', envelope -> 'headers')) IS DISTINCT FROM 'object' THEN
                RAISE EXCEPTION 'Content has no Headers';
            END IF;
            headers := coalesce(envelope -> 'Headers', envelope -> 'headers')::text::jsonb || coalesce(headers, '{}');
            payload := coalesce(envelope -> 'Value', envelope -> 'value');
            IF json_typeof(payload) = 'null' THEN
                payload := NULL; -- CAP sends no body then
            END IF;
            -- ExpiresAt is the time to send only of these rows, else that to delete the row. A new row has only the delay, a TimeSpan.
            available_at := coalesce(available_at, CASE WHEN r."StatusName" IN ('Delayed', 'Queued') THEN r."ExpiresAt"::timestamptz END,
                {{if .Moves}}r."Added"::timestamptz{{else}}now(){{end}} + regexp_replace(headers ->> 'cap-delaytime', '[.](?=[0-9]+:)', ' ')::interval);
{{- if .Moves}}
            created_at := coalesce(created_at, r."Added"::timestamptz); -- of a new row it is now, without the application's time zone
{{- end}}
{{- end}}

{{define "namastack"}}
            IF attempts > 0 THEN -- else it is the time of creation, by the application's clock
                available_at := coalesce(available_at, r."next_retry_at"::timestamptz);
            END IF;
{{- end}}

{{define "look"}}
{{- if .Moves}}
    LOCK TABLE {{.Source}} IN ROW EXCLUSIVE MODE; -- nothing is hung on it after the look
{{- end}}
    -- A DELETE runs with the rights of this session, and with it what hangs on the table. By the grants: a transaction with
    -- an older snapshot does not see a new trigger, and it fires.
    SELECT x.owns, x.role INTO stranger FROM (
        SELECT true, c.relowner FROM pg_class c WHERE c.oid {{.Relations}}
        UNION ALL SELECT false, x.grantee FROM pg_class c, aclexplode(c.relacl) x
        WHERE c.oid {{.Relations}} AND x.grantee <> c.relowner AND x.privilege_type IN ('TRIGGER', 'REFERENCES')
        UNION ALL SELECT false, x.grantee FROM pg_attribute a, aclexplode(a.attacl) x
        WHERE a.attrelid {{.Relations}} AND a.attacl IS NOT NULL AND x.privilege_type = 'REFERENCES'
        UNION ALL SELECT false, coalesce(c.relowner, p.proowner) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        LEFT JOIN pg_class c ON c.oid = t.tgconstrrelid
        WHERE t.tgrelid {{.Relations}} AND t.tgtype & 8 = 8 AND t.tgenabled <> 'D' -- DELETE
    ) x(owns, role) WHERE NOT EXISTS (SELECT FROM pg_roles t WHERE t.oid = x.role AND (
        t.rolsuper OR t.rolname IN (current_user, {{.Trusted}})
        OR t.oid = (SELECT d.datdba FROM pg_database d WHERE d.datname = current_database())))
    ORDER BY x.owns DESC LIMIT 1;
    IF stranger.owns{{if .Moves}} OR FOUND{{end}} THEN
        RAISE EXCEPTION 'role % is not trusted to run code as role %, and owns or changes table %', stranger.role::regrole, current_user, {{.Literal}}
            USING ERRCODE = 'insufficient_privilege', HINT = 'cdc-relay check';
    END IF;
{{- end}}

{{define "function"}}
#variable_conflict use_column
DECLARE
    r record; stranger record;
{{- template "variables"}}
BEGIN
{{- range .Sequences}}
    IF NEW.{{.Column}} IS NULL THEN
        NEW.{{.Column}} := nextval({{.Sequence}}); -- a view has no identity columns
    END IF;
{{- end}}
{{- if .View}}
    r := NEW;
{{- else}}
{{- template "look" .}}
    IF stranger.role IS NOT NULL THEN
        RAISE WARNING 'role % has TRIGGER or REFERENCES on table %: its rows stay there', stranger.role::regrole, {{.Literal}} USING HINT = 'cdc-relay check';
        r := NEW;
    ELSE
    -- By its place: a search in the index would be a read of other transactions' keys, and SERIALIZABLE ones would fail.
    DELETE FROM {{.Source}} s WHERE s.ctid = NEW.ctid AND s.tableoid = TG_RELID AND {{keyOf "NEW"}} RETURNING s.* INTO r;
    IF NOT FOUND THEN -- the application has changed the row that it inserted, or deleted it
        DELETE FROM {{.Source}} s WHERE {{keyOf "NEW"}} RETURNING s.* INTO r;
        IF NOT FOUND THEN
            r := NEW;
        END IF;
    END IF;
    END IF;
{{- end}}
{{- template "convert" .}}
    RETURN {{if .View}}NEW{{else}}NULL{{end}};
END {{end}}

{{define "move"}}
#variable_conflict use_column
DECLARE
    k record; r record; stranger record; moved bigint := 0;
{{- template "variables"}}
BEGIN
{{- template "look" .}}
    FOR k IN SELECT {{.KeyColumns}} FROM {{.Source}} s WHERE {{.Waiting}} ORDER BY {{.Order}} LOOP
        DELETE FROM {{.Source}} s WHERE {{keyOf "k"}} AND {{.Waiting}} RETURNING s.* INTO r;
        CONTINUE WHEN NOT FOUND; -- somebody else has deleted it
{{- template "convert" .}}
        moved := moved + 1;
{{- if .Commit}}
        IF moved % 1000 = 0 THEN
            COMMIT;
            {{- template "look" .}}
        END IF;
{{- end}}
    END LOOP;
    PERFORM set_config('cdc_relay.moved', moved::text, false);
END {{end}}
