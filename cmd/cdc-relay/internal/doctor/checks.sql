-- What one comparison decides. Each statement is a check, below its area and its names. Its rows are a name, a level,
-- a text, and the lines of the fix. In these, "set NAME VALUE" and "restart NAME VALUE" stand for the way in which this
-- server gets a setting, "logical" for that to logical decoding, and "safe …" for SQL that --fix may run.
WITH s AS (SELECT jsonb_object_agg(name, setting) AS val,
             jsonb_object_agg(name, setting::bigint) FILTER (WHERE vartype = 'integer') AS n FROM pg_settings),
me AS (SELECT * FROM pg_roles WHERE rolname = current_user),
login AS (SELECT * FROM pg_roles WHERE rolname = CASE WHEN @administrator THEN current_user ELSE session_user END),
own AS (SELECT DISTINCT ON (1) split_part(o, '=', 1) AS name, substr(o, strpos(o, '=') + 1) AS value
        FROM me, pg_db_role_setting d, unnest(d.setconfig) o
        WHERE @administrator AND d.setrole IN (0, me.oid)
          AND d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
        ORDER BY 1, d.setrole = 0, d.setdatabase = 0)

-- postgres commits
SELECT 'commits', 'critical', format('the COMMIT of %s sessions waits for a synchronous standby '
    '(synchronous_standby_names: %s)', count(*), (SELECT val->>'synchronous_standby_names' FROM s)),
  ARRAY['-- start the standby; or, until it is back:', 'set synchronous_standby_names ']
FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database() HAVING count(*) > 0

-- postgres read_only
SELECT 'read_only', 'warning', format('default_transaction_read_only is on for role "%s": the relay turns it off for '
    'its sessions, but an application with this role cannot insert. Some services set it when the disk is almost full',
    rolname),
  ARRAY['SET default_transaction_read_only = off;', format(
    'ALTER ROLE %I IN DATABASE %I SET default_transaction_read_only = off;', rolname, current_database())]
FROM login WHERE NOT pg_is_in_recovery()
  AND coalesce((SELECT value::bool FROM own WHERE name = 'default_transaction_read_only'), @readonly)

-- postgres login
SELECT 'login', 'critical', format('role "%s" %s', rolname, w.says), ARRAY[w.fix]
FROM login, LATERAL (VALUES
  (NOT rolcanlogin, 'may not log in', format('ALTER ROLE %I LOGIN;', rolname)),
  (NOT has_database_privilege(oid, current_database(), 'CONNECT'), 'may not connect to this database',
    format('safe GRANT CONNECT ON DATABASE %I TO %I;', current_database(), rolname)),
  (rolvaliduntil <= clock_timestamp(), 'cannot log in with a password: it has expired',
    format('ALTER ROLE %I VALID UNTIL ''infinity'';', rolname))) w(wrong, says, fix)
WHERE @administrator AND w.wrong

-- postgres connections
SELECT 'connections', 'warning', format('role "%s" may open %s connections: a relay needs up to 7', login.rolname,
    login.rolconnlimit), ARRAY[format('ALTER ROLE %I CONNECTION LIMIT -1;', login.rolname)]
FROM login, me WHERE login.rolconnlimit BETWEEN 0 AND 6 AND NOT me.rolsuper

-- postgres statement_timeout idle_session_timeout
SELECT name, 'warning', format('%s is %s for role "%s": %s', name,
    CASE WHEN ms % 1000 = 0 THEN ms / 1000 || 's' ELSE ms || 'ms' END, rolname, effect),
  ARRAY[format('ALTER ROLE %I IN DATABASE %I SET %s = 0;', rolname, current_database(), name)]
FROM login, (SELECT name, effect, most, (extract(epoch FROM
               CASE WHEN v.value ~ '^[0-9]+$' THEN v.value || 'ms' ELSE v.value END::interval) * 1000)::bigint AS ms
             FROM (VALUES
               ('statement_timeout', 1000, 'the server may cancel statements of the relay when it is busy'),
               ('idle_session_timeout', 60000, 'the server ends sessions of the relay, and its sweeps fail')
             ) w(name, most, effect) JOIN pg_settings p USING (name) LEFT JOIN own USING (name),
             LATERAL (SELECT coalesce(own.value, p.reset_val) AS value) v) t
WHERE ms > 0 AND ms < most

-- postgres wal_level
SELECT 'wal_level', CASE WHEN can THEN 'ok' ELSE 'critical' END,
  CASE WHEN NOT can THEN format('wal_level is %s: streaming needs logical', level)
    WHEN @poll THEN level || '; --mode poll needs no streaming' WHEN level = 'logical' THEN level
    ELSE format('%s, and %s now: this server raises it while a logical slot exists', level, effective) END,
  CASE WHEN NOT can THEN ARRAY['logical'] END
FROM (SELECT val->>'wal_level' AS level, val->>'effective_wal_level' AS effective,
        @poll OR val->>'wal_level' = 'logical'
        OR val->>'wal_level' = 'replica' AND (n->'server_version_num')::int >= 190000 AS can FROM s) w

-- postgres max_replication_slots
SELECT 'max_replication_slots', CASE WHEN filled THEN 'critical' ELSE 'ok' END,
  format('%s of %s are in use%s', used, most, CASE WHEN filled THEN '; not active are ' || idle END),
  CASE WHEN filled THEN ARRAY['restart max_replication_slots ' || most + 10] END || CASE WHEN filled AND idle <> '' THEN
    ARRAY['-- or drop one that its owner no longer needs: SELECT pg_catalog.pg_drop_replication_slot(''NAME'');'] END
FROM (SELECT *, used >= most AND NOT @exists AS filled
      FROM (SELECT count(*) AS used, (SELECT (n->'max_replication_slots')::int FROM s) AS most, array_to_string((
              array_agg(slot_name) FILTER (WHERE NOT active))[1:5], ', ') AS idle FROM pg_replication_slots) u) w
WHERE NOT @poll

-- postgres max_wal_senders
SELECT 'max_wal_senders', CASE WHEN used < most THEN 'ok' WHEN @relayed THEN 'warning' ELSE 'critical' END,
  CASE WHEN used < most OR NOT @relayed THEN format('%s of %s walsenders are in use', used, most)
    ELSE 'all ' || most || ' are in use: the relay streams, but a standby, or a relay that reconnects, finds none' END,
  CASE WHEN used >= most THEN ARRAY['restart max_wal_senders ' || most + 10] END
FROM (SELECT (SELECT count(*) FROM pg_stat_replication) AS used, (n->'max_wal_senders')::int AS most FROM s) w
WHERE NOT @poll

-- postgres wal_sender_timeout
SELECT 'wal_sender_timeout', CASE WHEN ms BETWEEN 1 AND 2999 THEN 'warning' ELSE 'ok' END,
  CASE WHEN ms BETWEEN 1 AND 2999 THEN ms || 'ms: a short pause of the network or of the relay ends the stream'
    ELSE ms || 'ms' END, CASE WHEN ms BETWEEN 1 AND 2999 THEN ARRAY['set wal_sender_timeout 60s'] END
FROM (SELECT (n->'wal_sender_timeout')::bigint AS ms FROM s) w WHERE NOT @poll

-- slot max_slot_wal_keep_size
SELECT 'max_slot_wal_keep_size', CASE WHEN mb < 1024 THEN 'warning' ELSE 'ok' END,
  CASE WHEN mb < 0 THEN 'no limit: while all relays are stopped, WAL fills the disk. '
    WHEN mb < 1024 THEN mb || ' MB is little: one large transaction of any application can invalidate the slot. '
    ELSE mb || ' MB. ' END || 'For this relay a limit is safe: it recreates an invalidated slot and scans the table'
    || CASE WHEN mb < 0 AND @others::text <> '' THEN
         '. But the server has other slots, which it may harm: ' || @others::text
       ELSE '' END,
  CASE WHEN mb < 1024 THEN ARRAY[@limit::text] END || CASE WHEN mb < 0 AND @others::text <> '' THEN
    ARRAY['-- check the other slots first: the limit applies to them, too'] END
FROM (SELECT (n->'max_slot_wal_keep_size')::bigint AS mb FROM s) w WHERE NOT @poll

-- slot idle_replication_slot_timeout
SELECT name, 'ok', CASE setting WHEN '0' THEN 'off: the slot of stopped relays stays, within max_slot_wal_keep_size'
    ELSE justify_hours((setting || unit)::interval) || ': relays that were stopped for longer find no slot, '
      'recreate it and scan the table; nothing is lost' END, NULL::text[]
FROM pg_settings WHERE name = 'idle_replication_slot_timeout' AND NOT @poll

-- cleanup autovacuum
SELECT 'autovacuum', level, says, fix FROM (
  SELECT 1 AS rank, 'warning' AS level, name || ' is off on this server: dead rows pile up until the server stops for '
      'fear of wraparound' AS says, ARRAY['set ' || name || ' on'] AS fix
  FROM pg_settings WHERE name IN ('autovacuum', 'track_counts') AND setting = 'off'
  UNION ALL SELECT 2, 'warning', format('autovacuum is off for %s: dead rows pile up, and scans of the table '
      'take longer', @name::text), ARRAY[format('safe ALTER TABLE %s RESET (autovacuum_enabled);', @printed::text)]
  FROM pg_class c, pg_options_to_table(c.reloptions)
  WHERE c.oid = to_regclass(@table::text) AND c.relkind = 'r' AND option_name = 'autovacuum_enabled'
    AND lower(option_value) IN ('false', 'off', 'no', '0')
  UNION ALL SELECT 3, 'warning', @name::text || ' lacks settings of a queue: without them, autovacuum comes late '
      'or slowly', ARRAY[format('safe ALTER TABLE %s SET (%s);', @printed::text,
      string_agg(w.name || '=' || most, ', '))]
  FROM pg_class c, LATERAL (VALUES ('autovacuum_vacuum_scale_factor', 0), ('autovacuum_vacuum_threshold', 1000),
      ('autovacuum_vacuum_cost_delay', 0)) w(name, most)
    LEFT JOIN LATERAL pg_options_to_table(c.reloptions) o ON o.option_name = w.name
  WHERE c.oid = to_regclass(@table::text) AND c.relkind = 'r' AND
    CASE WHEN o.option_value ~ '^[0-9.]+(ms)?$' THEN rtrim(o.option_value, 'ms')::float8 > most ELSE true END
  HAVING count(*) > 0
  UNION ALL SELECT 4, 'ok', 'on, after 1000 dead rows or fewer', NULL
  FROM pg_class WHERE oid = to_regclass(@table::text) AND relkind = 'r') w ORDER BY rank LIMIT 1

-- cleanup dead_rows
SELECT 'dead_rows', CASE WHEN many THEN 'warning' ELSE 'ok' END,
  format('about %s dead rows and %s live ones, %s%s', dead, live,
    coalesce('vacuumed ' || date_trunc('second', since) || ' ago', 'never vacuumed'),
    CASE WHEN many THEN ': scans of the table take longer' END),
  CASE WHEN many THEN ARRAY['VACUUM (ANALYZE) ' || @printed::text ||
    ';  -- frees nothing while a transaction above is open'] END
FROM (SELECT *, dead > live / 5 AND (dead > 100000 OR
          dead > 10000 AND coalesce(since > interval '10 min', true)) AS many
  FROM (SELECT sum(p.n_dead_tup)::bigint AS dead, sum(p.n_live_tup)::bigint AS live,
          clock_timestamp() - max(greatest(p.last_vacuum, p.last_autovacuum)) AS since
        FROM (SELECT to_regclass(@table::text) AS relid
              UNION SELECT relid FROM pg_partition_tree(to_regclass(@table::text))) t
          JOIN pg_stat_all_tables p USING (relid)) d) w
WHERE dead IS NOT NULL

-- tables sequence
SELECT 'sequence', w.level, format(w.says, @sequencename::text), w.fix
FROM pg_sequence, LATERAL (VALUES
  (seqcache > 1, 'warning', 'sequence %s caches ' || seqcache || ' ids for each session: '
    'a later row can get a lower id and overtake earlier rows of its ordering key',
    ARRAY[format('ALTER SEQUENCE %s CACHE 1;', @sequence::text)]),
  (seqincrement < 0, 'critical', 'sequence %s descends: the newest row is published first, and the order is reversed',
    ARRAY['BEGIN;', format('ALTER SEQUENCE %s INCREMENT BY 1 NO MINVALUE NO MAXVALUE START 1 RESTART;',
        @sequence::text),
      format('SELECT pg_catalog.setval(%L, greatest(pg_catalog.max(id), 0) + 1, false) FROM %s;', @sequence::text,
        @printed::text), 'COMMIT;'])) w(wrong, level, says, fix)
WHERE seqrelid = to_regclass(@sequence::text) AND w.wrong

-- tables sequence
SELECT 'sequence', 'critical', format(CASE
    WHEN next > seqmax AND NOT seqcycle THEN 'sequence %s is at its MAXVALUE: every INSERT fails'
    ELSE 'sequence %s is at %s, but the table has id %s: an INSERT fails as soon as it gets the id of a row'
    END, @sequencename::text, next, latest),
  ARRAY[CASE WHEN next > seqmax AND NOT seqcycle AND seqmax < 9223372036854775807
    THEN format('ALTER SEQUENCE %s AS bigint NO MAXVALUE;', @sequence::text)
    ELSE format('SELECT pg_catalog.setval(%L, coalesce(pg_catalog.max(id), 0) + 1, false) FROM %s;', @sequence::text,
      @printed::text)
      || CASE WHEN next > seqmax THEN '  -- when the relay has published the row with the highest id' ELSE '' END END]
FROM (SELECT q.last_value::numeric + CASE WHEN q.is_called THEN p.seqincrement ELSE 0 END AS next, p.seqmax, p.seqcycle,
        coalesce((SELECT max(id) FROM %TABLE%), 0) AS latest
      FROM %SEQUENCE% q, pg_sequence p WHERE p.seqrelid = q.tableoid AND p.seqincrement > 0) w
WHERE next > seqmax AND NOT seqcycle OR next <= latest

-- tables schema_version expires_at created_at
SELECT w.name, 'warning', w.n || CASE w.n WHEN 1 THEN ' row' ELSE ' rows' END || ' of those examined ' || w.says, w.fix
FROM (SELECT count(*) FILTER (WHERE schema_version > @schema::int) AS newer, max(schema_version) AS version,
        count(*) FILTER (WHERE expires_at <= clock_timestamp()) AS expired,
        count(*) FILTER (WHERE created_at > clock_timestamp() + interval '5 min') AS ahead, max(created_at) AS latest
      FROM ((SELECT id, created_at, expires_at, schema_version FROM %TABLE% ORDER BY id LIMIT 1000) UNION
            (SELECT id, created_at, expires_at, schema_version FROM %TABLE% ORDER BY id DESC LIMIT 1000)) r) r,
LATERAL (VALUES
  ('schema_version', newer, format('have a schema_version above %s, up to %s: this relay leaves them in the table',
      @schema::int, version),
    ARRAY[format('-- run relays that know schema_version %s; or, if it is a mistake of the application:', version),
      format('UPDATE %1$s SET schema_version = %2$s WHERE schema_version > %2$s;', @printed::text, @schema::int)]),
  ('expires_at', expired, 'have expired: the relay does not publish them (--on-expired)',
    ARRAY['UPDATE ' || @printed::text ||
      ' SET expires_at = NULL WHERE expires_at <= now();  -- publishes them nevertheless']),
  ('created_at', ahead, format('were created in the future, up to %s: while no relay streams they wait until then, '
      'and their age is wrong', latest),
    ARRAY[format('UPDATE %s SET created_at = now() WHERE created_at > now() + interval ''5 minutes'';', @printed::text),
      '-- and leave created_at out of the INSERT: its default is the clock of Postgres'])) w(name, n, says, fix)
WHERE w.n > 0

-- tables payload
SELECT 'payload', 'warning', format('of the newest 100 waiting rows, %s payloads are JSON text inside a JSON string, '
    'such as "{\"a\": 1}"', count(*)),
  ARRAY['-- give the client library an object, not text that is JSON already']
FROM (SELECT CASE WHEN pg_column_size(payload) < 8160 THEN payload END AS payload
      FROM %TABLE% ORDER BY id DESC LIMIT 100) newest
WHERE json_typeof(payload) = 'string' AND payload::text ~ '^\s*"\s*(\{.*\}|\[.*\])(\s|\\[nrt])*"\s*$'
HAVING count(*) > 0
