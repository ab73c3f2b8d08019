-- The history: published messages, with a partition for each day (UTC). The relay moves a row here in the statement that
-- deletes it from the outbox (run --keep-published), and drops old partitions. Rows of days without a partition go to the
-- default partition.
DO {{.quote}}
DECLARE
    own   oid := (SELECT relowner FROM pg_class WHERE oid = {{.outbox_literal}}::regclass);
    other record;
BEGIN
    -- Grants and triggers of a table of another role would stay.
    SELECT c.oid::regclass AS name, c.relowner::regrole AS owner INTO other FROM pg_class c
    WHERE c.oid IN (to_regclass({{.literal}}), to_regclass({{.default_literal}})) AND c.relowner <> own;
    IF FOUND THEN
        RAISE EXCEPTION 'table % belongs to role %, not to %, the owner of the outbox', other.name, other.owner, own::regrole
            USING ERRCODE = 'duplicate_table', HINT = format('ALTER TABLE %s OWNER TO %s;  -- if it is yours, with its grants and triggers', other.name, own::regrole);
    END IF;
END {{.quote}};
CREATE TABLE IF NOT EXISTS {{.published}} (
    id                 bigint      NOT NULL,
    created_at         timestamptz NOT NULL,
    expires_at         timestamptz,
    published_at       timestamptz NOT NULL,
    message_id         uuid        NOT NULL,
    attempts           integer     NOT NULL,
    schema_version     smallint    NOT NULL,
    max_attempts       smallint,
    possible_duplicate boolean,
    exchange           text,
    routing_key        text        NOT NULL,
    ordering_key       text,
    coalesce_key       text,
    headers            jsonb,
    properties         jsonb,
    payload            json,
    payload_bytes      bytea,
    redacted_payload   json,
    last_error         text,
    -- A key, because a publication FOR ALL TABLES lets no row without one be deleted.
    CONSTRAINT {{call .published_index "pkey"}} PRIMARY KEY (id, published_at)
) PARTITION BY RANGE (published_at);
CREATE TABLE IF NOT EXISTS {{.default}} PARTITION OF {{.published}} DEFAULT WITH (toast_tuple_target = 8160);
COMMENT ON TABLE {{.published}} IS 'Messages that cdc-relay has published. run --keep-published sets how long they stay.';

-- Creates the partitions of today and the next two days, and drops those older than the given interval. Returns how many
-- were dropped. It must delay nobody: if it does not get a lock soon, it leaves the rest to the next call.
CREATE OR REPLACE FUNCTION {{.rotate}}(keep interval)
RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS {{.quote}}
DECLARE
    day   timestamp;
    part  text;
    child regclass;
    gone  integer := 0;
BEGIN
    -- One relay at a time. A role that may only INSERT and SELECT cannot hold this lock.
    LOCK TABLE ONLY {{.published}} IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass({{.default_literal}}) IS NULL THEN -- somebody has dropped it
        BEGIN
            EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL) WITH (toast_tuple_target = 8160)', {{.default_literal}}, {{.literal}});
            EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s DEFAULT', {{.literal}}, {{.default_literal}});
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    FOR i IN 0..2 LOOP
        day := date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') + i * interval '1 day';
        part := format('%I.%I', {{.schema}}::text, {{.prefix}} || to_char(day, 'YYYYMMDD'));
        CONTINUE WHEN to_regclass(part) IS NOT NULL;
        BEGIN
            -- An attached table needs a weaker lock than one that is made as a partition.
            EXECUTE format('CREATE TABLE %s (LIKE %s INCLUDING ALL) WITH (toast_tuple_target = 8160)', part, {{.literal}});
            EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', {{.literal}}, part,
                day AT TIME ZONE 'UTC', (day + interval '1 day') AT TIME ZONE 'UTC');
        EXCEPTION WHEN check_violation OR lock_not_available THEN
            NULL; -- the default partition has rows of that day, or somebody reads it: it takes the others, too
        END;
    END LOOP;
    FOR child IN
        SELECT c.oid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = {{.literal}}::regclass AND c.relname ~ '_p[0-9]{8}$'
          AND (to_timestamp(right(c.relname, 8), 'YYYYMMDD')::date + 1)::timestamp AT TIME ZONE 'UTC' <= clock_timestamp() - keep
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE %s', child);
            gone := gone + 1;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    -- The owner of the schema could have put another table in its place, with triggers that would run as this owner.
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = {{.literal}}::regclass AND inhrelid = to_regclass({{.default_literal}})) THEN
        RETURN gone;
    END IF;
    DELETE FROM {{.default}} r USING (
        SELECT d.id, d.published_at FROM {{.default}} d ORDER BY d.id, d.published_at LIMIT 10000) s -- in the order of the index
    WHERE r.id = s.id AND r.published_at = s.published_at AND s.published_at <= clock_timestamp() - keep;
    RETURN gone;
END {{.quote}};

{{.claim}}DO {{.quote}}
DECLARE
    owner text := (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = {{.outbox_literal}}::regclass);
BEGIN
    EXECUTE format('ALTER TABLE %s OWNER TO %s', {{.literal}}, owner);
    EXECUTE format('ALTER TABLE %s OWNER TO %s', {{.default_literal}}, owner);
    BEGIN
        PERFORM {{.rotate}}(interval '1000 years'); -- creates the first partitions, and drops none
    EXCEPTION WHEN insufficient_privilege THEN
        NULL; -- the owner may not create tables: check reports it
    END;
END {{.quote}};
