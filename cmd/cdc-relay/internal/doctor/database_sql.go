package doctor

import (
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
)

const serverSQL = `
SELECT jsonb_build_object(
  'version_number', current_setting('server_version_num')::int,
  'version', current_setting('server_version'),
  'in_recovery', pg_is_in_recovery(),
  'database', current_database(),
  'backend_pid', pg_backend_pid(),
  'roles', (SELECT coalesce(jsonb_agg(rolname), '[]') FROM pg_roles WHERE rolname = ANY ($2::text[])),
  'settings', (SELECT jsonb_object_agg(name, jsonb_build_object('value', setting, 'unit', coalesce(unit, '')))
               FROM pg_settings WHERE name = ANY ($1::text[])),
  'walsenders', (SELECT count(*) FROM pg_stat_replication))`

// roleSQL reads the settings of the role from the catalog if the session is a login of another role ($1).
const roleSQL = `
WITH me AS (SELECT * FROM pg_roles WHERE rolname = current_user),
own AS (SELECT DISTINCT ON (1) split_part(s, '=', 1) AS name, substr(s, strpos(s, '=') + 1) AS value
        FROM me, pg_db_role_setting d, unnest(d.setconfig) s
        WHERE $1 AND d.setrole IN (0, me.oid)
          AND d.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
        ORDER BY 1, d.setrole = 0, d.setdatabase = 0),
timeouts AS (SELECT s.name, coalesce(own.value, s.reset_val) AS value FROM pg_settings s LEFT JOIN own USING (name)
             WHERE s.name IN ('statement_timeout', 'idle_session_timeout'))
SELECT jsonb_build_object(
  'name', rolname, 'superuser', rolsuper, 'replication', rolreplication,
  'rds', EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(current_user, oid, 'MEMBER')),
  'sees_others', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
  'creates', has_database_privilege(current_database(), 'CREATE'), 'connections', rolconnlimit,
  'timeouts', (SELECT jsonb_object_agg(name, (extract(epoch FROM
                 CASE WHEN value ~ '^[0-9]+$' THEN value || 'ms' ELSE value END::interval) * 1000)::bigint)
               FROM timeouts),
  'read_only', (SELECT value::boolean FROM own WHERE name = 'default_transaction_read_only'),
  'login', rolcanlogin, 'connect', has_database_privilege(current_database(), 'CONNECT'),
    'expired', coalesce(rolvaliduntil <= clock_timestamp(), false))
FROM me`

// triggersSQL lists the enabled triggers of the relation t. A partition's copy of its parent's trigger is left out.
const triggersSQL = `(
  SELECT coalesce(jsonb_agg(jsonb_build_object('name', g.tgname, 'function', p.proname, 'type', g.tgtype,
    'language', l.lanname, 'always', g.tgqual IS NULL AND g.tgattr::text = '',
    'returns', (SELECT coalesce(jsonb_agg(DISTINCT lower(word[1])), '[]')
                FROM regexp_matches(
                  regexp_replace(regexp_replace(p.prosrc, '--[^\n]*', '', 'g'), '/\*.*?\*/', '', 'g'),
                  '\mreturn\M\s*(\w+|\S)', 'gi') word)) ORDER BY g.tgname), '[]')
  FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_language l ON l.oid = p.prolang
  WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgparentid = 0 AND g.tgenabled IN ('O', 'A'))`

// indexesSQL lists the B-tree indexes of the relation t. The name of an expression is null.
const indexesSQL = `(
  SELECT coalesce(jsonb_agg(jsonb_build_object(
              'index', jsonb_build_object('Schema', n.nspname, 'Name', c.relname),
              'unique', i.indisunique, 'primary', i.indisprimary,
    'valid', i.indisvalid AND i.indisready, 'predicate', coalesce(pg_get_expr(i.indpred, i.indrelid), ''),
    'columns', (SELECT jsonb_agg(a.attname ORDER BY k.n) FROM unnest(i.indkey) WITH ORDINALITY k(attnum, n)
                LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                  WHERE k.n <= i.indnkeyatts))), '[]')
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam AND m.amname = 'btree'
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.indrelid = t.oid)`

// referencesSQL lists the foreign keys to the relation t.
const referencesSQL = `(SELECT coalesce(jsonb_agg(jsonb_build_object(
                        'table', jsonb_build_object('Schema', n.nspname, 'Name', c.relname),
                        'name', f.conname, 'action', f.confdeltype) ORDER BY f.conname), '[]')
                      FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid
                        JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE f.confrelid = t.oid AND f.contype = 'f' AND f.conparentid = 0)`

// constraintsSQL lists what can reject a row of the relation t, with the columns that it reads. What a partition has
// from its parent is left out.
const constraintsSQL = `(SELECT coalesce(jsonb_agg(to_jsonb(r) ORDER BY r.name, r.index), '[]') FROM (
                      SELECT k.conname::text AS name, '{}'::jsonb AS index, k.contype IN ('p', 'u', 'x') AS "unique", (
                        SELECT coalesce(jsonb_agg(a.attname), '[]') FROM pg_attribute a
                          WHERE a.attrelid = t.oid AND a.attnum = ANY (k.conkey)) AS columns
                      FROM pg_constraint k WHERE k.conrelid = t.oid AND k.contype IN ('c', 'f', 'p', 'u', 'x')
                        AND NOT (t.relispartition AND k.coninhcount > 0)
                      UNION ALL SELECT '', jsonb_build_object('Schema', n.nspname, 'Name', c.relname), true, (
                        SELECT coalesce(jsonb_agg(a.attname), '[]') FROM pg_attribute a
                          WHERE a.attrelid = t.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
                      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid AND NOT c.relispartition
                        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.indrelid = t.oid AND i.indisunique
                        AND NOT EXISTS (SELECT FROM pg_constraint k
                                        WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))) r)`

const tablesSQL = `
WITH schema AS (SELECT oid FROM pg_namespace WHERE nspname = $1),
tables AS (SELECT c.* FROM pg_class c, schema WHERE c.relnamespace = schema.oid AND c.relname = ANY ($2::text[])
           AND c.relkind IN ('r', 'p')),
sequence AS (
  SELECT s.oid, jsonb_build_object('Schema', n.nspname, 'Name', s.relname) AS name
  FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = 'id'
  JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid AND d.refobjsubid = a.attnum
    AND d.deptype IN ('a', 'i')
  JOIN pg_class s ON d.classid = 'pg_class'::regclass AND s.oid = d.objid AND s.relkind = 'S'
  JOIN pg_namespace n ON n.oid = s.relnamespace
  WHERE t.relname = $3 LIMIT 1),
leaves AS (
  SELECT r.relname AS root, n.nspname, c.*
  FROM tables r, pg_partition_tree(r.oid) l JOIN pg_class c ON c.oid = l.relid
    JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE r.relkind = 'p' AND l.isleaf AND c.relkind = 'r')
SELECT jsonb_build_object(
  'schema_exists', EXISTS (SELECT FROM schema),
  'schema_usage', coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM schema), false),
  'tables', (SELECT coalesce(jsonb_object_agg(t.relname, jsonb_build_object(
     'kind', t.relkind,
     'childless', t.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_partition_tree(t.oid) WHERE isleaf),
     'persistence', t.relpersistence, 'options', coalesce(to_jsonb(t.reloptions), '[]'),
     'owner', pg_get_userbyid(t.relowner), 'owned', pg_has_role(t.relowner, 'USAGE'),
     'columns', (SELECT jsonb_agg(jsonb_build_object(
                   'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull,
                   'filled', a.atthasdef OR a.attidentity <> '', 'generated', a.attgenerated <> '',
                   'default', coalesce((
                     SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                       WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum AND a.attgenerated = ''), '')
                   )) FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped),
     'privileges', (SELECT coalesce(jsonb_agg(p), '[]') FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p
                    WHERE has_table_privilege(t.oid, p)),
     'hidden', row_security_active(t.oid),
     'secured', t.relrowsecurity AND NOT EXISTS (
       SELECT FROM pg_policy p WHERE p.polrelid = t.oid AND p.polpermissive AND p.polcmd IN ('a', '*')),
     'indexes', ` + indexesSQL + `,
     'triggers', ` + triggersSQL + `,
     'rules', (SELECT coalesce(jsonb_agg(r.rulename ORDER BY r.rulename), '[]') FROM pg_rewrite r
               WHERE r.ev_class = t.oid AND r.ev_type IN ('2', '3', '4') AND r.ev_enabled IN ('O', 'A')),
     'references', ` + referencesSQL + `, 'constraints', ` + constraintsSQL + `)), '{}') FROM tables t),
  'leaves', (SELECT coalesce(jsonb_agg(jsonb_build_object(
     'root', t.root, 'schema', t.nspname, 'name', t.relname, 'persistence', t.relpersistence,
     'triggers', ` + triggersSQL + `, 'references', ` + referencesSQL + `, 'constraints', ` + constraintsSQL + `
   ) ORDER BY t.nspname, t.relname), '[]') FROM leaves t),
  'outboxes', (SELECT coalesce(jsonb_agg(jsonb_build_object('Schema', o.nspname, 'Name', o.relname)), '[]')
               FROM (` + schema.OutboxesSQL + `) o),
  'others', (SELECT coalesce(jsonb_object_agg(o.name, o.kind), '{}')
             FROM (` + migrations.ObjectsSQL + `) o, schema
               WHERE o.namespace = schema.oid AND o.name = ANY ($2::text[]) AND o.kind <> 'TABLE'),
  'views', (SELECT coalesce(jsonb_object_agg(v.relname, v.tables), '{}') FROM (
     SELECT c.relname, jsonb_agg(DISTINCT jsonb_build_object('schema', n.nspname, 'name', b.relname,
       'columns', (SELECT jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
                   WHERE a.attrelid = b.oid AND a.attnum > 0 AND NOT a.attisdropped))) AS tables
     FROM schema JOIN pg_class c ON c.relnamespace = schema.oid JOIN pg_rewrite r ON r.ev_class = c.oid
     JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
       AND d.refobjid <> c.oid
     JOIN pg_class b ON b.oid = d.refobjid AND b.relkind IN ('r', 'p') JOIN pg_namespace n ON n.oid = b.relnamespace
     WHERE c.relname = ANY ($2::text[]) AND c.relkind = 'v' GROUP BY c.relname) v),
  'sequence', (SELECT name FROM sequence),
  'increment', (SELECT seqincrement FROM pg_sequence JOIN sequence s ON s.oid = seqrelid),
  'cache', (SELECT seqcache FROM pg_sequence JOIN sequence s ON s.oid = seqrelid),
  'sequence_granted', coalesce((SELECT has_sequence_privilege(oid, 'SELECT, USAGE') FROM sequence), true))`

const appSQL = `
SELECT jsonb_build_object(
  'exists', true, 'login', r.rolcanlogin, 'connect', has_database_privilege(r.oid, current_database(), 'CONNECT'),
  'usage', coalesce(has_schema_privilege(r.oid, n.oid, 'USAGE'), false),
  'columns', (SELECT coalesce(jsonb_agg(a.attname), '[]') FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND has_column_privilege(r.oid, c.oid, a.attnum, 'INSERT')),
  'reads', (SELECT coalesce(jsonb_agg(a.attname ORDER BY a.attname), '[]') FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
              AND has_column_privilege(r.oid, c.oid, a.attnum, 'SELECT')),
  'sequence', (SELECT coalesce(bool_and(has_sequence_privilege(r.oid, q.oid, 'USAGE')), true) FROM pg_depend d
               JOIN pg_class q ON q.oid = d.objid AND q.relkind = 'S' WHERE d.classid = 'pg_class'::regclass
                 AND d.refobjid = c.oid),
  'defaults', (SELECT coalesce(jsonb_agg(DISTINCT jsonb_build_object(
                 'schema', s.nspname, 'name', q.relname, 'same', q.relowner = c.relowner)), '[]')
               FROM pg_attrdef a
               JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid
                 AND d.refclassid = 'pg_class'::regclass
               JOIN pg_class q ON q.oid = d.refobjid JOIN pg_namespace s ON s.oid = q.relnamespace
               WHERE a.adrelid = c.oid
                 AND CASE q.relkind WHEN 'S' THEN NOT has_sequence_privilege(r.oid, q.oid, 'USAGE, UPDATE') END),
  'enqueue', EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = n.oid AND f.proname = $3 || '_enqueue'
                     AND has_function_privilege(r.oid, f.oid, 'EXECUTE')),
  'cancel', EXISTS (SELECT FROM pg_proc f WHERE f.pronamespace = n.oid AND f.proname = $3 || '_cancel'
                    AND has_function_privilege(r.oid, f.oid, 'EXECUTE')),
  'more', (SELECT coalesce(jsonb_agg(p), '[]') FROM unnest('{SELECT,UPDATE,DELETE,TRUNCATE,TRIGGER}'::text[]) p
           WHERE has_table_privilege(r.oid, c.oid, p) OR p = 'UPDATE' AND has_any_column_privilege(r.oid, c.oid, p)),
  'owner', r.rolsuper OR coalesce(pg_has_role(r.oid, c.relowner, 'USAGE'), false),
  'rejected', coalesce(c.relrowsecurity AND NOT r.rolsuper AND NOT r.rolbypassrls
              AND NOT (pg_has_role(r.oid, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity)
              AND NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive
                              AND p.polcmd IN ('a', '*')
                              AND EXISTS (SELECT FROM unnest(p.polroles) m
                                          WHERE m = 0 OR pg_has_role(r.oid, m, 'USAGE'))), false))
FROM pg_roles r
LEFT JOIN pg_namespace n ON n.nspname = $2
LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = $3 AND c.relkind IN ('r', 'p')
WHERE r.rolname = $1`

// idsSQL reads the sequence after the snapshot was taken, so each visible row has an older id.
const idsSQL = `
SELECT jsonb_build_object('exhausted', next > seqmax AND NOT seqcycle, 'behind', next <= max_id,
                          'narrow', seqmax < 9223372036854775807, 'next', next, 'max_id', max_id)
FROM (SELECT q.last_value::numeric + CASE WHEN q.is_called THEN s.seqincrement ELSE 0 END AS next, s.seqmax, s.seqcycle,
             coalesce((SELECT max(id) FROM %TABLE%), 0) AS max_id
      FROM %SEQUENCE% q, pg_sequence s WHERE s.seqrelid = q.tableoid AND s.seqincrement > 0) ids`

// textualSQL counts payloads among the newest rows that are JSON text inside a JSON string. It reads no large ones.
const textualSQL = `
SELECT to_jsonb(count(*)) FROM (SELECT CASE WHEN pg_column_size(payload) < 8160 THEN payload END AS payload
                                FROM %TABLE% ORDER BY id DESC LIMIT 100) newest
WHERE json_typeof(payload) = 'string' AND payload::text ~ '^\s*"\s*(\{.*\}|\[.*\])(\s|\\[nrt])*"\s*$'`

// to_jsonb leaves out columns that versions before 15 do not have.
func publicationSQL() string {
	return `
SELECT jsonb_build_object(
  'exists', true, 'owner', pg_get_userbyid(p.pubowner),
  'insert', p.pubinsert, 'update', p.pubupdate, 'delete', p.pubdelete,
  'truncate', p.pubtruncate, 'via_root', p.pubviaroot, 'all_tables', p.puballtables,
  'has_table', t.relid IS NOT NULL OR r.prrelid IS NOT NULL,
  'no_table', c.oid IS NULL, 'column_list', (to_jsonb(r) ->> 'prattrs') IS NOT NULL,
  'filter', coalesce(t.line ->> 'rowfilter', ''),
  'columns', coalesce((SELECT string_agg(a, ', ') FROM jsonb_array_elements_text(
                       CASE jsonb_typeof(t.line -> 'attnames') WHEN 'array' THEN t.line -> 'attnames'
                            ELSE '[]' END) a), ''),
  'others', (SELECT count(*) FROM (SELECT FROM pg_publication_tables o WHERE o.pubname = p.pubname
             AND (o.schemaname, o.tablename) <> ($2, $3) LIMIT 1000) few),
  'outboxes', (` + provision.OtherOutboxesSQL("p.pubname", "$2", "$3") + `))
FROM pg_publication p
LEFT JOIN pg_class c ON c.relname = $3 AND c.relkind IN ('r', 'p')
  AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $2)
LEFT JOIN LATERAL (SELECT to_jsonb(o) AS line, c.oid AS relid FROM pg_publication_tables o
                   WHERE o.pubname = p.pubname AND o.schemaname = $2 AND o.tablename = $3 LIMIT 1) t ON true
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
WHERE p.pubname = $1`
}

const standbysSQL = `
SELECT coalesce(jsonb_agg(standby), '[]')
FROM (SELECT trim(both ' "' FROM w.standby) AS standby
      FROM pg_settings p, unnest(string_to_array(p.setting, ',')) w(standby)
      WHERE p.name = 'synchronized_standby_slots' AND p.setting <> '') waited
WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = standby AND s.active)`

const transactionsSQL = `
SELECT jsonb_build_object(
  'commits', (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()),
  'standbys', current_setting('synchronous_standby_names'),
  'sessions', (SELECT coalesce(jsonb_agg(to_jsonb(x)), '[]') FROM (
     SELECT pid, coalesce(usename, '') AS "user", coalesce(application_name, '') AS program,
       coalesce(datname, '') AS database,
            coalesce(state, '') AS state, datname IS NOT DISTINCT FROM current_database() AS here,
            extract(epoch FROM clock_timestamp() - xact_start) AS age
     FROM pg_stat_activity
     WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
       AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
     ORDER BY xact_start LIMIT 20) x),
  'prepared', (SELECT coalesce(jsonb_agg(to_jsonb(x)), '[]') FROM (
     SELECT gid, owner AS "user", database, database = current_database() AS here,
            extract(epoch FROM clock_timestamp() - prepared) AS age
     FROM pg_prepared_xacts ORDER BY prepared LIMIT 20) x),
  'writers', (SELECT coalesce(jsonb_agg(to_jsonb(x)), '[]') FROM (
     SELECT l.pid, coalesce(a.usename, '') AS "user", coalesce(a.application_name, '') AS program,
       coalesce(a.state, '') AS state,
            coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0) AS age,
              max(age(l.transactionid)) AS xid_age
     FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()
     GROUP BY l.pid, a.usename, a.application_name, a.state, a.xact_start ORDER BY xid_age DESC LIMIT 20) x),
  'feedback', (SELECT coalesce(jsonb_agg(to_jsonb(x)), '[]') FROM (
     SELECT pid, coalesce(usename, '') AS "user", coalesce(application_name, '') AS program,
       age(backend_xmin) AS xid_age
     FROM pg_stat_replication WHERE backend_xmin IS NOT NULL ORDER BY age(backend_xmin) DESC LIMIT 20) x))`

// The oldest and the newest rows: a row that waits for its time is among the oldest.
const timesSQL = `
SELECT jsonb_build_object('rows', count(*) FILTER (WHERE ahead),
                          'latest', coalesce((max(created_at) FILTER (WHERE ahead))::text, ''),
  'expired', count(*) FILTER (WHERE expires_at <= clock_timestamp()),
  'newer', count(*) FILTER (WHERE schema_version > %VERSION%), 'newest_version', coalesce(max(schema_version), 0))
FROM (SELECT r.*, created_at > clock_timestamp() + interval '5 minutes' AS ahead FROM (
  (SELECT id, created_at, expires_at, schema_version FROM %TABLE% ORDER BY id LIMIT 1000) UNION
  (SELECT id, created_at, expires_at, schema_version FROM %TABLE% ORDER BY id DESC LIMIT 1000)) r) r`

// pg_partition_tree returns no row for a table that is not partitioned.
const deadSQL = `
SELECT jsonb_build_object(
  'dead', coalesce(sum(s.n_dead_tup), 0)::bigint, 'live', coalesce(sum(s.n_live_tup), 0)::bigint,
    'pages', coalesce(sum(c.relpages), 0),
  'since', coalesce(extract(epoch FROM clock_timestamp() - max(greatest(s.last_vacuum, s.last_autovacuum))), -1))
FROM (SELECT $1::text::regclass AS relid UNION SELECT relid FROM pg_partition_tree($1::text::regclass)) t
  JOIN pg_class c ON c.oid = t.relid JOIN pg_stat_all_tables s ON s.relid = t.relid`

// grantsSQL lists who has privileges on the outbox, besides superusers and its owner: by a grant on the table or on
// columns, or as a member of pg_write_all_data. trusted: the role of the relay is a member, or it was granted something
// on the dead-letter table, as relays and operators are, and applications are not.
const grantsSQL = `
WITH tables AS (SELECT c.oid, c.relname, c.relowner, c.relacl FROM pg_class c
                JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND c.relname IN ($2, $3) AND c.relkind IN ('r', 'p')),
given AS (SELECT t.relname, t.relowner, x.grantee, x.privilege_type AS privilege FROM tables t, aclexplode(t.relacl) x
          UNION SELECT t.relname, t.relowner, x.grantee, x.privilege_type FROM tables t
            JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped, aclexplode(a.attacl) x),
wide AS (SELECT t.relowner, m.member AS grantee, r.rolname AS inherited FROM tables t, pg_auth_members m
         JOIN pg_roles r ON r.oid = m.roleid
         WHERE t.relname = $2 AND r.rolname = 'pg_write_all_data'),
held AS (SELECT grantee, relowner, '' AS inherited, array_agg(DISTINCT privilege) AS privileges FROM given
         WHERE relname = $2 AND privilege IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER')
           GROUP BY grantee, relowner
         UNION ALL SELECT grantee, relowner, inherited, '{INSERT,UPDATE,DELETE}' FROM wide)
SELECT coalesce(jsonb_agg(jsonb_build_object('role', coalesce(r.rolname, ''), 'inherited', h.inherited,
    'privileges', (SELECT jsonb_agg(p ORDER BY array_position('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,TRIGGER}', p))
                   FROM unnest(h.privileges) p),
    'apps', (SELECT coalesce(jsonb_agg(a.rolname), '[]') FROM pg_roles a
             WHERE a.rolname = ANY ($4::text[]) AND CASE WHEN r.oid IS NULL THEN true
               ELSE pg_has_role(a.oid, r.oid, 'USAGE') END),
    'trusted', r.oid IS NOT NULL AND (
      pg_has_role(current_user, r.oid, 'USAGE')
        AND NOT (SELECT s.rolsuper FROM pg_roles s WHERE s.rolname = current_user)
      OR EXISTS (SELECT FROM given d WHERE d.relname = $3 AND d.grantee <> 0
                 AND pg_has_role(r.oid, d.grantee, 'USAGE'))),
    'members', CASE WHEN r.oid IS NULL THEN '[]'
      ELSE (SELECT coalesce(jsonb_agg(m.rolname ORDER BY m.rolname), '[]') FROM (
        SELECT p.rolname FROM pg_auth_members s JOIN pg_roles p ON p.oid = s.member WHERE s.roleid = r.oid
        ORDER BY 1 LIMIT 5) m) END) ORDER BY r.rolname, h.inherited), '[]')
FROM held h LEFT JOIN pg_roles r ON r.oid = h.grantee
WHERE h.grantee = 0 OR r.oid IS NOT NULL AND NOT r.rolsuper AND NOT pg_has_role(r.oid, h.relowner, 'USAGE')`
