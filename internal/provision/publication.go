package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// publicationOptions: only inserts, because a published DELETE fails on tables without a primary key and costs
// decoding. Partitions come under the name of their root.
const publicationOptions = "publish = 'insert', publish_via_partition_root = true"

func createPublicationSQL(names Names) string {
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s)",
		outbox.Identifier(names.Publication), publishedTable(names), publicationOptions)
}

// publishedTable returns the table, with the row filter of the shard if there is one.
func publishedTable(names Names) string {
	if names.Shard.Whole() {
		return names.Table.String()
	}
	return fmt.Sprintf("%s WHERE (%s)", names.Table.String(), names.Shard.Condition(""))
}

// SetTableSQL returns SQL that makes the publication bring exactly this table, as the shard needs it.
func SetTableSQL(names Names) string {
	return fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s", outbox.Identifier(names.Publication), publishedTable(names))
}

// ReplaceTableSQL does the same and keeps the other tables of the publication. It returns one transaction.
func ReplaceTableSQL(names Names) []string {
	alter := "ALTER PUBLICATION " + outbox.Identifier(names.Publication)
	return []string{
		"BEGIN",
		alter + " DROP TABLE " + names.Table.String(),
		alter + " ADD TABLE " + publishedTable(names),
		"COMMIT",
	}
}

// ensurePublication creates or repairs the publication, and returns one line about it; "": nothing was needed. It does
// not change settings that others may rely on, such as published deletes.
func ensurePublication(ctx context.Context, conn *pgconn.PgConn, names Names) (string, error) {
	var done []string
	for range 4 { // at most three repairs, each checked
		state, err := readPublication(ctx, conn, names)
		if err != nil {
			return strings.Join(done, ", "), err
		}
		faults := state.Faults(names)
		if len(faults) == 0 {
			return strings.Join(done, ", "), nil
		}
		fault := faults[0]
		if fault.onPurpose != "" {
			return strings.Join(done, ", "), problem.New(fault.Fix, "%s", fault.onPurpose)
		}
		if _, err = slot.Query(ctx, conn, fault.Fix); err != nil {
			// Another relay or setup may have been faster; the server reports that with several errors.
			if now, readErr := readPublication(ctx, conn, names); readErr == nil && !now.has(fault.Kind, names) {
				continue
			}
			return strings.Join(done, ", "), publicationProblem(err, names, fault.Fix)
		}
		done = append(done, fault.done)
	}
	err := fmt.Errorf("publication %q was changed by another session at the same time", names.Publication)
	return strings.Join(done, ", "), err
}

// PublicationFaulty returns why the publication does not bring every row of the table, or "".
func PublicationFaulty(ctx context.Context, conn *pgconn.PgConn, names Names) (string, error) {
	state, err := readPublication(ctx, conn, names)
	if faults := state.Faults(names); err == nil && len(faults) > 0 {
		return faults[0].Says, nil
	}
	return "", err
}

// has reports whether there is a fault of a kind.
func (p Publication) has(kind PublicationFaultKind, names Names) bool {
	return slices.ContainsFunc(p.Faults(names), func(f PublicationFault) bool { return f.Kind == kind })
}

// Publication is the publication in the catalog, with the relayed table. The zero value does not exist.
type Publication struct {
	Exists   bool
	Insert   bool // it publishes inserts
	ViaRoot  bool // partitions come under the name of their root
	HasTable bool
	// Stranger owns the publication, and is neither the role of the session, nor the owner of the database or the
	// table, nor a superuser; "": it is trusted.
	Stranger string
	// NoTable: the table does not exist.
	NoTable bool
	// RowFilter is the condition on the rows of the table, as the server prints it, or "".
	RowFilter string
	// ColumnList: somebody has limited the columns of the table.
	ColumnList bool
	// Outboxes are other outboxes that it brings. They are read only if the table is not in it.
	Outboxes []outbox.Table
}

func readPublication(ctx context.Context, conn *pgconn.PgConn, names Names) (Publication, error) {
	rows, err := slot.Query(ctx, conn, fmt.Sprintf(`
SELECT p.pubinsert, p.pubviaroot,
       EXISTS (SELECT 1 FROM pg_catalog.pg_publication_tables t
               WHERE t.pubname = p.pubname AND t.schemaname = %[2]s AND t.tablename = %[3]s),
       coalesce(pg_catalog.pg_get_expr(r.prqual, r.prrelid), ''), r.prattrs IS NOT NULL,
       pg_catalog.to_regclass(%[4]s) IS NULL,
       coalesce((SELECT o.rolname FROM pg_catalog.pg_roles o WHERE o.oid = p.pubowner AND NOT o.rolsuper
         AND o.rolname <> current_user
         AND o.oid NOT IN (SELECT d.datdba FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
           UNION SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.oid = pg_catalog.to_regclass(%[4]s)::oid)), '')
FROM pg_catalog.pg_publication p
LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = pg_catalog.to_regclass(%[4]s)::oid
WHERE p.pubname = %[1]s`,
		outbox.QuoteLiteral(names.Publication), outbox.QuoteLiteral(names.Table.Schema),
		outbox.QuoteLiteral(names.Table.Name), outbox.QuoteLiteral(names.Table.SQL())))
	if err != nil {
		return Publication{}, fmt.Errorf("read publication %q: %w", names.Publication, err)
	}
	if len(rows) == 0 {
		return Publication{}, nil
	}
	is := func(i int) bool { return rows[0][i] == "t" }
	state := Publication{
		Exists:     true,
		Insert:     is(0),
		ViaRoot:    is(1),
		HasTable:   is(2),
		RowFilter:  rows[0][3],
		ColumnList: is(4),
		NoTable:    is(5),
		Stranger:   rows[0][6],
	}
	if !state.HasTable {
		state.Outboxes, err = otherOutboxes(ctx, conn, names.Publication, names.Table)
	}
	return state, err
}

// PublicationFault is one reason why a publication does not bring every row.
type PublicationFault struct {
	Kind PublicationFaultKind
	Says string // such as "it is gone"
	Fix  string // the SQL that fixes it

	done      string // the text after the relay has fixed it
	onPurpose string // the text if somebody chose it; the relay then changes nothing
}

// PublicationFaultKind is the kind of a fault.
type PublicationFaultKind int

// The faults, in the order in which they must be fixed.
const (
	PublicationMissing PublicationFaultKind = iota + 1
	PublicationWithoutInserts
	PublicationByPartition
	PublicationWithoutTable
	PublicationWithRowFilter
	PublicationWithColumnList
	PublicationOfAnotherOutbox
	PublicationOfAnotherRole
)

// Faults returns everything to fix.
func (p Publication) Faults(names Names) []PublicationFault {
	name := outbox.Identifier(names.Publication)
	if !p.Exists {
		return []PublicationFault{{
			Kind: PublicationMissing, Says: "it is gone", Fix: createPublicationSQL(names),
			done: fmt.Sprintf("created publication %s for table %s", name, names.Table),
		}}
	}
	if !p.HasTable && len(p.Outboxes) > 0 { // it is not ours to change
		found := p.foreign(names)
		return []PublicationFault{{
			Kind: PublicationOfAnotherOutbox, Says: "it publishes " + printed(p.Outboxes) + " instead of the table",
			Fix: found.Fix, onPurpose: found.What,
		}}
	}
	if !p.HasTable && p.Stranger != "" {
		return []PublicationFault{{
			Kind: PublicationOfAnotherRole, Says: "it belongs to role " + p.Stranger,
			Fix: fmt.Sprintf("# if it may belong to that role: ALTER PUBLICATION %s ADD TABLE %s; "+
				"else choose another name with --publication", name, publishedTable(names)),
			onPurpose: fmt.Sprintf("publication %s belongs to role %s, which is not trusted", name, p.Stranger),
		}}
	}
	var faults []PublicationFault
	if !p.Insert {
		faults = append(faults,
			optionFault(name, PublicationWithoutInserts, "it does not publish inserts", "publish = 'insert'"))
	}
	if !p.ViaRoot {
		faults = append(faults, optionFault(name, PublicationByPartition,
			"it publishes partitions under their own names", "publish_via_partition_root = true"))
	}
	if !p.HasTable {
		faults = append(faults, PublicationFault{
			Kind: PublicationWithoutTable, Says: "it does not contain the table",
			Fix:  fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", name, publishedTable(names)),
			done: fmt.Sprintf("added table %s to publication %s", names.Table, name),
		})
	}
	if says, onPurpose := p.filterFault(names); says != "" && p.HasTable {
		faults = append(faults, PublicationFault{
			Kind: PublicationWithRowFilter, Says: says, Fix: SetTableSQL(names),
			onPurpose: fmt.Sprintf("publication %s "+onPurpose, name, names.Table),
		})
	}
	if p.ColumnList {
		faults = append(faults, PublicationFault{
			Kind: PublicationWithColumnList, Says: "it has a column list on the table", Fix: SetTableSQL(names),
			onPurpose: fmt.Sprintf("publication %s has a column list on table %s, which hides columns from the relay",
				name, names.Table),
		})
	}
	return faults
}

// filterFault says what is wrong with the row filter, which has to be the shard's own, and what of the publication and
// the table is so on purpose; "": nothing.
func (p Publication) filterFault(names Names) (says, onPurpose string) {
	shard := names.Shard.String()
	switch {
	case p.RowFilter == names.Shard.Printed():
		return "", ""
	case names.Shard.Whole():
		return "it has a row filter on the table", "has a row filter on table %s, which hides rows from the relay"
	case p.RowFilter == "":
		return "it lacks the row filter of shard " + shard,
			"publishes all rows of table %s, not only those of shard " + shard
	}
	return "it has another row filter on the table than that of shard " + shard,
		"has another row filter on table %s than that of shard " + shard
}

func optionFault(publication string, kind PublicationFaultKind, says, option string) PublicationFault {
	return PublicationFault{
		Kind: kind, Says: says,
		Fix:  fmt.Sprintf("ALTER PUBLICATION %s SET (%s)", publication, option),
		done: fmt.Sprintf("set %s on publication %s", option, publication),
	}
}

func publicationProblem(err error, names Names, fix string) error {
	what := fmt.Sprintf("cannot create or change publication %q", names.Publication)
	switch pgcode.Of(err) {
	case pgerrcode.UndefinedTable:
		return problem.Of(err, problem.Command(names.Table, "setup"), "table %s does not exist", names.Table)
	case pgerrcode.InvalidParameterValue:
		return unreplicable(err, names, what)
	case pgerrcode.FeatureNotSupported:
		return problem.Of(err, "ALTER TABLE "+names.Table.String()+" ALTER COLUMN ordering_key TYPE text "+
			"COLLATE \"default\";  -- row filters need that collation; or run without --shard", "%s", what)
	case pgerrcode.InsufficientPrivilege:
		return problem.Of(err, fix+";  -- as the owner of the table and of the publication", "%s", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// unreplicable explains why the server does not publish the table. Only the detail of its answer says that.
func unreplicable(err error, names Names, what string) error {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return fmt.Errorf("%s: %w", what, err)
	}
	detail := strings.ToLower(answer.Detail)
	if strings.Contains(detail, "unlogged") {
		fix := fmt.Sprintf("ALTER TABLE %s SET LOGGED;  -- locks and rewrites the table", names.Table)
		return problem.Of(err, fix, "table %s is UNLOGGED: its rows are not in the WAL, so they cannot stream, "+
			"and a crash loses them", names.Table)
	}
	return problem.Of(err, problem.Command(names.Table, "check"), "%s: %s", what, problem.OneLine(answer.Detail))
}
