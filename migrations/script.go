package migrations

import (
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// SQL returns what Up does, as plain SQL for users who cannot run Up: psql, or a tool for migrations. It is one
// statement, so all of it happens or nothing, and it leaves the settings of its transaction as they were. It runs only
// pending migrations and records the version, so that Status agrees with it afterwards. Owner is that of CheckOwners.
func SQL(table outbox.Table, owner ...string) (string, error) {
	if err := checkName(table); err != nil {
		return "", err
	}
	versions := VersionTable(table).SQL()
	var b strings.Builder
	// Nobody else's function or operator must run in place of one of Postgres.
	fmt.Fprintf(&b, `
DECLARE
    former_path    text := pg_catalog.current_setting('search_path');
    former_timeout text := pg_catalog.current_setting('lock_timeout');
    former_jit     text := pg_catalog.current_setting('jit');
BEGIN
%[1]s%[2]s
IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %[3]s) THEN
    CREATE SCHEMA %[4]s;
END IF;
IF pg_catalog.to_regclass(%[5]s) IS NULL THEN
%[6]s;
ELSE
    LOCK TABLE %[7]s IN EXCLUSIVE MODE;
END IF;

-- A table or view of another role with one of these names could run code as you.
%[8]s`, localPath, localTimeout, QuoteLiteral(table.Schema), outbox.QuoteIdentifier(table.Schema),
		QuoteLiteral(versions), createVersions(versions), versions, OwnersSQL(table, outbox.Table{}, owner...))
	for _, step := range steps(table) {
		fmt.Fprintf(&b, `
IF (SELECT version < %[1]d FROM %[2]s) THEN
%[3]s
UPDATE %[2]s SET version = %[1]d;
END IF;
`, step.Version, versions, step.sql)
	}
	b.WriteString(`
PERFORM pg_catalog.set_config('jit', former_jit, true), pg_catalog.set_config('lock_timeout', former_timeout, true),
    pg_catalog.set_config('search_path', former_path, true);
END `)
	quote := DollarQuote(b.String())
	return fmt.Sprintf("-- Tables of the outbox %s, version %d. Safe to run again.\nDO %[3]s%[4]s%[3]s;\n",
		problem.OneLine(table.String()), Latest, quote, b.String()), nil
}
