package tabletest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// trapsSQL creates operators and functions in the schema public, as a role could that may create there. Each has other
// types than those of pg_catalog. Running one fails and counts; a role that is no superuser may not even plan one. The
// rows of the catalog are inserted: thousands of CREATE statements would take seconds.
const trapsSQL = `
CREATE SEQUENCE public.trapped;
GRANT CREATE ON SCHEMA public TO PUBLIC;
SET search_path = pg_catalog;
CREATE FUNCTION public.trap(int4) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS
    $b$ BEGIN PERFORM nextval('public.trapped'); RAISE EXCEPTION 'trapped'; END $b$;
CREATE FUNCTION public.trap(int4, int4) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS
    $b$ BEGIN PERFORM nextval('public.trapped'); RAISE EXCEPTION 'trapped'; END $b$;
REVOKE ALL ON FUNCTION public.trap(int4), public.trap(int4, int4) FROM PUBLIC;
CREATE TEMPORARY VIEW types AS SELECT t::regtype::oid AS oid FROM unnest(ARRAY[
    'text', 'varchar', 'name', '"char"', 'int2', 'int4', 'int8', 'float8', 'uuid', 'timestamptz', 'interval', 'bool',
    'json', 'jsonb', 'bytea', 'oid', 'xid', 'regclass', 'pg_lsn', 'text[]', 'int8[]', 'anyelement']) t;
INSERT INTO pg_proc SELECT new.* FROM (
    SELECT 'public.trap(int4)'::regprocedure::oid AS trap, name, t.oid::text AS types FROM types t, unnest(ARRAY[
        'quote_ident', 'quote_literal', 'to_regclass', 'to_regprocedure', 'pg_sequence_last_value', 'octet_length',
        'min', 'max', 'array_agg', 'unnest', 'pg_terminate_backend', 'age', 'host', 'row_security_active',
        'pg_stat_get_live_tuples', 'pg_advisory_lock', 'pg_advisory_unlock', 'pg_advisory_xact_lock',
        'hashint8extended', 'uuid_send', 'current_setting', 'pg_drop_replication_slot', 'jsonb_typeof', 'to_jsonb',
        'pg_column_size', 'isfinite']) name
    UNION ALL
    SELECT 'public.trap(int4, int4)'::regprocedure, name, l.oid || ' ' || r.oid FROM types l, types r, unnest(ARRAY[
        'format', 'concat', 'concat_ws', 'left', 'round', 'string_agg', 'pg_get_serial_sequence',
        'has_table_privilege', 'has_sequence_privilege', 'pg_create_logical_replication_slot', 'convert_to',
        'hashtextextended', 'format_type', 'date_trunc', 'to_char', 'pg_get_expr']) name) f
JOIN pg_proc p ON p.oid = f.trap
CROSS JOIN LATERAL jsonb_populate_record(p, jsonb_build_object('oid',
    pg_nextoid('pg_proc', 'oid', 'pg_proc_oid_index'), 'proname', f.name, 'proargtypes', f.types)) new
WHERE NOT EXISTS (SELECT FROM pg_proc o WHERE o.pronamespace = 'pg_catalog'::regnamespace
    AND o.proname = f.name AND o.proargtypes::text = f.types);
INSERT INTO pg_operator SELECT new.* FROM types l, types r, (
    VALUES ('||', NULL::regtype), ('->', NULL), ('+', NULL), ('-', NULL), ('*', NULL), ('/', NULL), ('%', NULL),
        ('->>', 'text'), ('#>>', 'text'), ('=', 'bool'), ('<>', 'bool'), ('<', 'bool'), ('>', 'bool'), ('<=', 'bool'),
        ('>=', 'bool'), ('~', 'bool'), ('!~', 'bool'), ('~*', 'bool'), ('~~', 'bool'), ('!~~', 'bool'),
        ('~~*', 'bool'), ('?', 'bool'), ('?|', 'bool')) f(name, result)
JOIN pg_operator p ON p.oid = '||(text,text)'::regoperator
CROSS JOIN LATERAL jsonb_populate_record(p, jsonb_build_object('oid',
    pg_nextoid('pg_operator', 'oid', 'pg_operator_oid_index'), 'oprname', f.name, 'oprnamespace',
    'public'::regnamespace::oid, 'oprleft', l.oid, 'oprright', r.oid, 'oprresult', coalesce(f.result, l.oid)::oid,
    'oprcode', 'public.trap(int4, int4)'::regprocedure::oid)) new
WHERE NOT EXISTS (SELECT FROM pg_operator o WHERE o.oprnamespace = 'pg_catalog'::regnamespace
    AND o.oprname = f.name AND o.oprleft = l.oid AND o.oprright = r.oid);
RESET search_path`

// PlantTraps creates functions and operators in the schema public that match calls better than those of Postgres. The
// test fails at its end if one of them ran.
func PlantTraps(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), trapsSQL); err != nil {
		t.Fatal(err)
	}
}

// Trapped fails the test if a trap ran.
func Trapped(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	var ran bool
	if err := conn.QueryRow(t.Context(), `SELECT is_called FROM public.trapped`).Scan(&ran); err != nil {
		t.Fatal(err)
	}
	if ran {
		t.Fatal("a function or an operator of the schema public ran in place of one of Postgres")
	}
}
