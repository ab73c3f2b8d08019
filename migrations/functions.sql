-- Functions for applications. They run as the owner of the table: a caller needs only EXECUTE.
CREATE OR REPLACE FUNCTION {{.enqueue}}(
    routing_key text, payload json, exchange text DEFAULT NULL, ordering_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL, properties jsonb DEFAULT NULL, available_at timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT NULL, expires_at timestamptz DEFAULT NULL, coalesce_key text DEFAULT NULL, message_id uuid DEFAULT NULL,
    redacted_payload json DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS {{.quote}}
#variable_conflict use_variable
DECLARE
    id     uuid := coalesce(message_id, gen_random_uuid());
    given  text := nullif(current_setting('cdc_relay.headers', true), '');
    shared jsonb;
BEGIN
    IF payload IS NULL THEN
        RAISE EXCEPTION 'payload is null' USING ERRCODE = 'null_value_not_allowed', HINT = 'For a JSON null: ''null''.';
    END IF;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object, not JSON %', jsonb_typeof(headers) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF given IS NOT NULL THEN
        BEGIN
            shared := given;
        EXCEPTION WHEN data_exception THEN
            NULL; -- reported below, without the value: it may hold secrets
        END;
        IF jsonb_typeof(shared) IS DISTINCT FROM 'object' THEN
            RAISE EXCEPTION 'the setting cdc_relay.headers is not a JSON object' USING ERRCODE = 'invalid_parameter_value',
                HINT = 'SET LOCAL cdc_relay.headers = ''{"request_id": "7f3a"}''';
        END IF;
    END IF;
    INSERT INTO {{.outbox}} (message_id, exchange, routing_key, ordering_key, payload, redacted_payload, headers, properties,
        available_at, max_attempts, expires_at, coalesce_key)
    VALUES (id, exchange, routing_key, ordering_key, payload, redacted_payload, coalesce(shared || headers, shared, headers), properties,
        available_at, max_attempts, expires_at, coalesce_key);
    RETURN id;
END {{.quote}};

-- A Celery task, as a message of protocol 2 to a queue. Its message_id is the task id.
CREATE OR REPLACE FUNCTION {{.celery}}(
    task text, args json DEFAULT '[]', kwargs json DEFAULT '{}', queue text DEFAULT 'celery', eta timestamptz DEFAULT NULL,
    countdown double precision DEFAULT NULL, expires timestamptz DEFAULT NULL, priority integer DEFAULT NULL, task_id uuid DEFAULT NULL,
    reply_to text DEFAULT NULL, redacted_payload json DEFAULT NULL)
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS {{.quote}}
DECLARE
    id uuid := coalesce(task_id, gen_random_uuid());
BEGIN
    IF task IS NULL OR queue IS NULL THEN
        RAISE EXCEPTION 'task and queue must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF json_typeof(args) IS DISTINCT FROM 'array' OR json_typeof(kwargs) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'args must be a JSON array and kwargs a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- All arguments, each with the type of its parameter. Then a function of the same name, by a role that may create
    -- functions in this schema, can neither make the call ambiguous nor run in its place.
    RETURN {{.enqueue}}(
        routing_key => queue, payload => json_build_array(args, kwargs, '{"callbacks": null, "errbacks": null, "chain": null, "chord": null}'::json),
        exchange => ''::text, ordering_key => NULL::text,
        headers => jsonb_build_object(
            'lang', 'py', 'task', task, 'id', id, 'root_id', id, 'parent_id', NULL, 'group', NULL, 'retries', 0, 'eta', NULL,
            'expires', to_char(expires AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'), 'timelimit', '[null, null]'::jsonb,
            -- Workers and Flower show these two. With a redacted payload they contain nothing of the arguments.
            'argsrepr', left(CASE WHEN redacted_payload IS NULL THEN args::text ELSE coalesce(redacted_payload ->> 0, '...') END, 1024),
            'kwargsrepr', left(CASE WHEN redacted_payload IS NULL THEN kwargs::text ELSE coalesce(redacted_payload ->> 1, '...') END, 1024),
            'origin', 'cdc-relay', 'ignore_result', false),
        properties => jsonb_strip_nulls(jsonb_build_object(
            'correlation_id', id, 'content_type', 'application/json', 'content_encoding', 'utf-8', 'priority', priority, 'reply_to', reply_to)),
        -- The message waits here, and not in a worker: the header eta stays null. Celery ignores a countdown of 0, too.
        available_at => coalesce(clock_timestamp() + make_interval(secs => nullif(countdown, 0)), eta),
        max_attempts => NULL::integer, expires_at => expires, coalesce_key => NULL::text, message_id => id,
        redacted_payload => redacted_payload);
END {{.quote}};

-- Waits after COMMIT until a message is published, at most for the given time. Returns 'published', 'waiting' or
-- 'dead: <reason>'.
CREATE OR REPLACE FUNCTION {{.await}}(message_id uuid, timeout interval DEFAULT '5 seconds')
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS {{.quote}}
DECLARE
    wanted   uuid := message_id;
    began    timestamptz := clock_timestamp();
    deadline timestamptz := began + coalesce(timeout, '0');
    rows     bigint[];
    waits    boolean;
    reason   text;
BEGIN
    IF message_id IS NULL THEN
        RAISE EXCEPTION 'message_id is null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'wait for a message on the primary, not on a standby' USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'A standby lags: a message that it has not received yet would count as published.';
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL OR current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'wait for a message only after COMMIT' USING ERRCODE = 'active_sql_transaction',
            HINT = 'No relay sees the message before. Call this in a new transaction, READ COMMITTED, that has written nothing.';
    END IF;
    -- message_id has no index. A message that was just sent is among the newest rows. Otherwise the tables are read
    -- once, and then by id. Another role may have inserted rows with the same id, so all of them count.
    SELECT array_agg(m.id) INTO rows FROM (SELECT o.id, o.message_id FROM {{.outbox}} o ORDER BY o.id DESC LIMIT 1000) m
    WHERE m.message_id = wanted;
    IF rows IS NULL THEN
        SELECT array_agg(m.id) INTO rows FROM (SELECT o.id, o.message_id FROM {{.outbox}} o
            UNION ALL SELECT d.id, d.message_id FROM {{.dead_letter}} d) m WHERE m.message_id = wanted;
    END IF;
    LOOP
        SELECT bool_or(m.failure_reason IS NULL), min(m.failure_reason) INTO waits, reason
        FROM (SELECT o.id, o.message_id, NULL AS failure_reason FROM {{.outbox}} o
              UNION ALL SELECT d.id, d.message_id, d.failure_reason FROM {{.dead_letter}} d) m WHERE m.id = ANY (rows) AND m.message_id = wanted;
        IF waits IS NULL THEN
            RETURN 'published';
        ELSIF NOT waits THEN
            RETURN 'dead: ' || reason;
        ELSIF clock_timestamp() >= deadline THEN
            RETURN 'waiting';
        END IF;
        -- While a caller has this lock, the relay deletes published rows at once; one caller is enough. The next look comes
        -- after a quarter of the time so far, from 2 to 100 ms.
        PERFORM pg_try_advisory_xact_lock(hashtextextended('cdc-relay await', {{.outbox_literal}}::regclass::oid::bigint)),
            pg_sleep(least(greatest(date_part('epoch', clock_timestamp() - began) / 4, 0.002), 0.1, date_part('epoch', deadline - clock_timestamp())));
    END LOOP;
END {{.quote}};

-- Deletes a message whose time has not come. True: it has not been published, and will not be once this commits.
CREATE OR REPLACE FUNCTION {{.cancel}}(message_id uuid)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS {{.quote}}
DECLARE
    wanted uuid := message_id;
    -- The message_id of a Celery task's retry begins with the first 12 bytes of the task id.
    first  uuid := (left(message_id::text, 28) || '00000000')::uuid;
    last   uuid := (left(message_id::text, 28) || 'ffffffff')::uuid;
    called timestamptz := clock_timestamp();
    rows   bigint[];
    waits  boolean;
    free   bigint[];
BEGIN
    IF message_id IS NULL THEN
        RAISE EXCEPTION 'message_id is null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    -- Another role may have inserted rows with the same id, so all of them must wait. Of rows without a time, which a
    -- relay may be publishing without a lock, only the newest are read: they have no index.
    SELECT array_agg(m.id), bool_and(m.waits) INTO rows, waits
    FROM (SELECT o.id, o.message_id, o.headers, o.available_at > called AND o.possible_duplicate IS NOT TRUE AS waits
          FROM {{.outbox}} o WHERE o.available_at IS NOT NULL
          UNION ALL SELECT n.id, n.message_id, n.headers, false FROM (SELECT * FROM {{.outbox}} o ORDER BY o.id DESC LIMIT 1000) n WHERE n.available_at IS NULL
          UNION ALL SELECT d.id, d.message_id, d.headers, false FROM {{.dead_letter}} d) m
    WHERE m.message_id BETWEEN first AND last AND (m.message_id = wanted OR m.headers ->> 'id' = wanted::text);
    IF waits IS NOT TRUE THEN
        RETURN false;
    END IF;
    -- A relay takes a row with a time only when that has come, and none that is locked. The time is compared once more,
    -- because the search may take long. If one row is locked, none is deleted.
    free := ARRAY(SELECT w.id FROM {{.outbox}} w
        WHERE w.id = ANY (rows) AND w.available_at > clock_timestamp() AND w.possible_duplicate IS NOT TRUE
        FOR UPDATE SKIP LOCKED);
    IF cardinality(free) < cardinality(rows) THEN
        RETURN false;
    END IF;
    DELETE FROM {{.outbox}} o WHERE o.id = ANY (rows);
    RETURN true;
END {{.quote}};

{{.claim -}}
