package migrations

import (
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// SQL returns what Up does, as a script for psql, for users who cannot run Up. It runs only pending migrations and
// records the version, so that Status agrees with it afterwards. Owner is that of CheckOwners.
func SQL(table outbox.Table, owner ...string) (string, error) {
	if err := checkName(table); err != nil {
		return "", err
	}
	versions := VersionTable(table).SQL()

	var b strings.Builder
	fmt.Fprintf(&b,
		"-- Tables of the outbox %s, version %d. For psql; safe to run again.\n",
		problem.OneLine(table.String()), Latest)
	// Nobody else's function or operator must run in place of one of Postgres.
	fmt.Fprintf(&b, "\\set ON_ERROR_STOP on\n%s;\nBEGIN;\n", pgdial.CatalogOnlySQL)
	b.WriteString(localTimeout)
	fmt.Fprintf(&b,
		"SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s) AS schema_missing \\gset\n",
		QuoteLiteral(table.Schema))
	fmt.Fprintf(&b, "\\if :schema_missing\nCREATE SCHEMA %s;\n\\endif\n", outbox.QuoteIdentifier(table.Schema))
	fmt.Fprintf(&b, "SELECT pg_catalog.to_regclass(%s) IS NULL AS versions_missing \\gset\n", QuoteLiteral(versions))
	fmt.Fprintf(&b, "\\if :versions_missing\n%[2]s;\n"+
		"\\else\nLOCK TABLE %[1]s IN EXCLUSIVE MODE;\n\\endif\n", versions, createVersions(versions))
	fmt.Fprintf(&b, "\n-- A table or view of another role with one of these names could run code as you.\n%s",
		OwnersSQL(table, outbox.Table{}, owner...))
	for _, step := range steps(table) {
		fmt.Fprintf(&b, "\nSELECT version < %d AS pending FROM %s \\gset\n\\if :pending\n", step.Version, versions)
		fmt.Fprintf(&b,
			"%s\nUPDATE %s SET version = %d;\n\\endif\n", step.sql, versions, step.Version)
	}
	b.WriteString("\nCOMMIT;\n")
	return b.String(), nil
}
