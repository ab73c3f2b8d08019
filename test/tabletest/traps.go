package tabletest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// trapsSQL creates operators and functions in the schema public, as a role could that may create there. Each has other
// types than those of pg_catalog. Running one fails and counts; a role that is no superuser may not even plan one.
const trapsSQL = `
CREATE SEQUENCE public.trapped;
GRANT CREATE ON SCHEMA public TO PUBLIC;
SET search_path = pg_catalog;
DO $do$
DECLARE
    types text[] := ARRAY[
        'text', 'varchar', 'name', '"char"', 'int2', 'int4', 'int8', 'numeric', 'float4', 'float8', 'uuid',
        'timestamptz', 'interval', 'bool', 'json', 'jsonb', 'bytea', 'oid', 'xid', 'regclass', 'pg_lsn', 'text[]',
        'int8[]'];
    l text; r text; o text; f text; result text; n integer := 0;
BEGIN
    FOREACH l IN ARRAY types LOOP
        FOREACH r IN ARRAY types LOOP
            FOREACH result IN ARRAY ARRAY['boolean', 'text', l] LOOP
                CONTINUE WHEN to_regprocedure(format('public.%I(%s, %s)', 'trap ' || result, l, r)) IS NOT NULL;
                EXECUTE format($f$CREATE FUNCTION public.%I(%s, %s) RETURNS %s
                    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS
                    $b$ BEGIN PERFORM nextval('public.trapped'); RAISE EXCEPTION 'trapped'; END $b$$f$,
                    'trap ' || result, l, r, result);
                EXECUTE format('REVOKE ALL ON FUNCTION public.%I(%s, %s) FROM PUBLIC', 'trap ' || result, l, r);
            END LOOP;
            FOREACH o IN ARRAY ARRAY[
                '=', '<>', '<', '>', '<=', '>=', '~', '~~', '~~*', '||', '->', '->>', '#>>', '+', '-', '*', '/'
            ] LOOP
                CONTINUE WHEN to_regoperator(format('pg_catalog.%s(%s,%s)', o, l, r)) IS NOT NULL;
                result := CASE WHEN o IN ('||', '->', '+', '-', '*', '/') THEN l
                               WHEN o IN ('->>', '#>>') THEN 'text' ELSE 'boolean' END;
                EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%I)',
                    o, l, r, 'trap ' || result);
            END LOOP;
        END LOOP;
        FOREACH f IN ARRAY ARRAY[
            'quote_ident', 'quote_literal', 'to_regclass', 'to_regprocedure', 'pg_sequence_last_value', 'octet_length',
            'min', 'max', 'array_agg', 'unnest', 'pg_terminate_backend', 'age', 'host', 'row_security_active',
            'pg_stat_get_live_tuples', 'pg_advisory_lock', 'pg_advisory_unlock', 'pg_advisory_xact_lock',
            'hashint8extended', 'uuid_send', 'current_setting', 'pg_drop_replication_slot', 'jsonb_typeof', 'to_jsonb',
            'pg_column_size', 'isfinite'
        ] LOOP
            CONTINUE WHEN to_regprocedure(format('pg_catalog.%s(%s)', f, l)) IS NOT NULL;
            EXECUTE format($f$CREATE FUNCTION public.%s(%s) RETURNS text
                LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS
                $b$ BEGIN PERFORM nextval('public.trapped'); RAISE EXCEPTION 'trapped'; END $b$$f$, f, l);
            EXECUTE format('REVOKE ALL ON FUNCTION public.%s(%s) FROM PUBLIC', f, l);
        END LOOP;
        FOREACH r IN ARRAY ARRAY['text', 'varchar', 'name', 'int4', 'int8', 'oid', 'regclass'] LOOP
            FOREACH f IN ARRAY ARRAY[
                'format', 'concat', 'concat_ws', 'left', 'round', 'string_agg', 'pg_get_serial_sequence',
                'has_table_privilege', 'has_sequence_privilege', 'pg_create_logical_replication_slot', 'convert_to',
                'hashtextextended', 'format_type', 'date_trunc', 'to_char', 'pg_get_expr'
            ] LOOP
                CONTINUE WHEN to_regprocedure(format('pg_catalog.%s(%s, %s)', f, l, r)) IS NOT NULL;
                EXECUTE format($f$CREATE FUNCTION public.%s(%s, %s) RETURNS text
                    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS
                    $b$ BEGIN PERFORM nextval('public.trapped'); RAISE EXCEPTION 'trapped'; END $b$$f$, f, l, r);
                EXECUTE format('REVOKE ALL ON FUNCTION public.%s(%s, %s) FROM PUBLIC', f, l, r);
            END LOOP;
        END LOOP;
    END LOOP;
END $do$;
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
