package replication

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// publicationOptions: inserts alone, since a published DELETE would break tables
// without a primary key and cost decoding; partitions under the name of their root.
const publicationOptions = "publish = 'insert', publish_via_partition_root = true"

func createPublicationSQL(names Names) string {
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s)",
		outbox.QuoteIdentifier(names.Publication), names.Table.SQL(), publicationOptions)
}

// EnsurePublication makes the publication, or brings an existing one in line,
// and says in one line what it did; "" where nothing was to do. What others may rely
// on, such as deletes that are published too, it leaves alone.
func EnsurePublication(ctx context.Context, conn *pgconn.PgConn, names Names) (string, error) {
	var done []string
	for range 4 { // at most three repairs, each seen to have worked
		state, err := readPublication(ctx, conn, names)
		if err != nil {
			return strings.Join(done, ", "), err
		}
		fix, line := state.repair(names)
		if fix == "" {
			return strings.Join(done, ", "), state.unrepairable(names)
		}
		_, err = query(ctx, conn, fix)
		if sqlState(err) == duplicateObject { // another relay was quicker
			continue
		}
		if err != nil {
			return strings.Join(done, ", "), publicationProblem(err, names, fix)
		}
		done = append(done, line)
	}
	return strings.Join(done, ", "), fmt.Errorf("publication %q changes while it is made ready", names.Publication)
}

type publication struct {
	exists, insert, viaRoot, hasTable, filtered, columnList bool
}

func readPublication(ctx context.Context, conn *pgconn.PgConn, names Names) (publication, error) {
	filters := "false, false"
	if serverVersion(conn) >= 15 {
		filters = "coalesce(r.prqual IS NOT NULL, false), coalesce(r.prattrs IS NOT NULL, false)"
	}
	rows, err := query(ctx, conn, fmt.Sprintf(`
SELECT p.pubinsert, p.pubviaroot,
       EXISTS (SELECT 1 FROM pg_catalog.pg_publication_tables t
               WHERE t.pubname = p.pubname AND t.schemaname = %[2]s AND t.tablename = %[3]s),
       %[4]s
FROM pg_catalog.pg_publication p
LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = to_regclass(%[5]s)
WHERE p.pubname = %[1]s`,
		literal(names.Publication), literal(names.Table.Schema), literal(names.Table.Name), filters,
		literal(names.Table.SQL())))
	if err != nil {
		return publication{}, fmt.Errorf("read publication %q: %w", names.Publication, err)
	}
	if len(rows) == 0 {
		return publication{}, nil
	}
	is := func(i int) bool { return rows[0][i] == "t" }
	return publication{exists: true, insert: is(0), viaRoot: is(1), hasTable: is(2), filtered: is(3), columnList: is(4)}, nil
}

// fault is what repair would mend, or what unrepairable tells of.
func (p publication) fault() string {
	switch {
	case !p.exists:
		return "it is gone"
	case !p.insert:
		return "it leaves inserts out"
	case !p.viaRoot:
		return "it names partitions instead of their table"
	case !p.hasTable:
		return "it leaves the table out"
	case p.filtered:
		return "it has a row filter on the table"
	case p.columnList:
		return "it has a column list on the table"
	}
	return ""
}

// repair is the SQL that brings the publication in line, and what to say of it.
func (p publication) repair(names Names) (sql, done string) {
	name := outbox.QuoteIdentifier(names.Publication)
	switch {
	case !p.exists:
		return createPublicationSQL(names), fmt.Sprintf("created publication %s for table %s", name, names.Table)
	case !p.insert:
		return set(name, "publish = 'insert'")
	case !p.viaRoot:
		return set(name, "publish_via_partition_root = true")
	case !p.hasTable:
		return fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", name, names.Table.SQL()),
			fmt.Sprintf("added table %s to publication %s", names.Table, name)
	}
	return "", ""
}

func set(publication, option string) (sql, done string) {
	return fmt.Sprintf("ALTER PUBLICATION %s SET (%s)", publication, option),
		fmt.Sprintf("set %s on publication %s", option, publication)
}

// unrepairable tells of what somebody chose on purpose, and the relay cannot live with.
func (p publication) unrepairable(names Names) error {
	name := outbox.QuoteIdentifier(names.Publication)
	mend := fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s", name, names.Table.SQL())
	switch {
	case p.filtered:
		return problem.New(mend, "publication %s has a row filter on table %s, which hides rows from the relay", name, names.Table)
	case p.columnList:
		return problem.New(mend, "publication %s has a column list on table %s, which hides columns from the relay", name, names.Table)
	}
	return nil
}

func publicationProblem(err error, names Names, fix string) error {
	what := fmt.Sprintf("publication %q cannot be made ready", names.Publication)
	switch sqlState(err) {
	case undefinedTable:
		return &problem.Problem{What: fmt.Sprintf("table %s does not exist", names.Table), Fix: "cdc-relay setup", Err: err}
	case insufficientPrivilege:
		return &problem.Problem{What: what, Fix: "as the owner of the table: " + fix, Err: err}
	}
	return fmt.Errorf("%s: %w", what, err)
}
