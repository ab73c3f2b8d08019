{{define "variables"}}
    message_id text; exchange text; routing_key text; ordering_key text; coalesce_key text;
    payload json; payload_bytes bytea; headers jsonb; properties jsonb; redacted_payload json;
    created_at timestamptz; available_at timestamptz; expires_at timestamptz; max_attempts smallint;
    attempts integer; possible_duplicate boolean;
    body text; envelope json; error text; replanned boolean;
{{- end}}

{{define "convert"}}
        replanned := false;
        LOOP
            message_id := NULL; exchange := NULL; routing_key := NULL; ordering_key := NULL; coalesce_key := NULL;
            payload := NULL; payload_bytes := NULL; headers := NULL; properties := NULL; redacted_payload := NULL;
            created_at := NULL; available_at := NULL; expires_at := NULL; max_attempts := NULL; attempts := NULL;
            possible_duplicate := {{.Moves}};
            BEGIN -- Nothing in this block writes, so it costs no transaction id.
                {{.Address}}
                {{.Content}}
{{- if .Errors}}
                IF error IS NOT NULL THEN
                    RAISE EXCEPTION '%', error;
                END IF;
{{- end}}
{{- if .Body}}
                BEGIN
                    payload := body::json;
                EXCEPTION WHEN OTHERS THEN -- not JSON
                    payload_bytes := convert_to(body, 'UTF8');
                    properties := '{"content_type": "text/plain"}' || coalesce(properties, '{}');
                END;
{{- end}}
{{- with .Then}}
    {{.}}
{{- end}}
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
        VALUES (CASE WHEN message_id IS NULL THEN gen_random_uuid() -- the same text always gives the same UUID
                WHEN message_id ~* '^[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}$' THEN message_id::uuid
                ELSE md5({{.Namespace}} || message_id)::uuid END, exchange, coalesce(routing_key, ''), ordering_key, coalesce_key, payload, payload_bytes,
            nullif(headers, '{}'), nullif(properties, '{}'), redacted_payload, coalesce(created_at, now()), available_at, expires_at, max_attempts,
            coalesce(attempts, 0), nullif(possible_duplicate, false));
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
{{- if .Only}}
    BEGIN -- of the row as it is now; if the application has deleted it, as it was
        IF NOT coalesce((SELECT coalesce({{.Only}}, false) FROM {{.Source}} s WHERE s.ctid = NEW.ctid AND s.tableoid = TG_RELID AND {{keyOf "NEW"}}),
            (SELECT coalesce({{.Only}}, false) FROM {{.Source}} s WHERE {{keyOf "NEW"}}), (SELECT coalesce({{.Only}}, false) FROM (SELECT NEW.*) s)) THEN
            RETURN NULL; -- no message: the row stays
        END IF;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'a row of table % stays there: %', {{.Literal}}, SQLERRM USING HINT = 'cdc-relay adopt --only';
        RETURN NULL;
    END;
{{- end}}
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
