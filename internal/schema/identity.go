package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// LacksIdentity returns the server's answer if a publication makes it reject every UPDATE or DELETE of a table, because
// it publishes them and cannot identify the rows.
func LacksIdentity(err error) (answer *pgconn.PgError, is bool) {
	is = errors.As(err, &answer) && answer.Routine == "CheckCmdReplicaIdentity"
	return answer, is
}

// ExplainIdentity returns the problem of LacksIdentity with the publications; nil: it is another error.
func ExplainIdentity(ctx context.Context, db Querier, table outbox.Table, err error) *problem.Problem {
	answer, is := LacksIdentity(err)
	if !is {
		return nil
	}
	names, failed := publishers(ctx, db, table)
	if failed != nil || len(names) == 0 {
		names = []string{"another publication"}
	}
	fix := fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY DEFAULT;  -- it needs the primary key", table.Printed())
	if answer.Code != pgerrcode.ObjectNotInPrerequisiteState { // a row filter or a column list
		fix = fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert');  "+
			"-- or drop its row filter or column list of %s", names[0], table)
	}
	return problem.Of(err, fix, "Postgres rejects every delete or update of %s because of %s: %s", table,
		strings.Join(names, ", "), problem.OneLine(strings.TrimSpace(answer.Message+". "+answer.Detail)))
}

// publishers returns the publications that publish updates or deletes of a table or of its partitions.
func publishers(ctx context.Context, db Querier, table outbox.Table) (names []string, err error) {
	err = db.QueryRow(ctx, `
SELECT coalesce(pg_catalog.array_agg(DISTINCT pg_catalog.quote_ident(p.pubname)), '{}')
FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
WHERE (p.pubupdate OR p.pubdelete)
  AND pg_catalog.to_regclass(pg_catalog.format('%I.%I', t.schemaname, t.tablename))::oid IN (
    SELECT pg_catalog.to_regclass($1)::oid
    UNION SELECT r.relid::oid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($1)) r)`,
		table.SQL()).Scan(&names)
	return names, err
}
