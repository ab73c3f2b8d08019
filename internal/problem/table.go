package problem

import (
	"fmt"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Command returns a command of cdc-relay for a table, as a person types it. If the table has another name than usual,
// slot and publication usually have too.
func Command(table outbox.Table, name string, flags ...string) string {
	command := strings.Join(append([]string{"cdc-relay", name}, flags...), " ")
	if table == (outbox.Table{Schema: "public", Name: "outbox"}) {
		return command
	}
	quoted := "'" + strings.ReplaceAll(table.String(), "'", `'\''`) + "'"
	return command + " --table " + quoted + "  # with the relay's own --slot and --publication"
}

// Noted adds a remark to a command of Command.
func Noted(command, remark string) string {
	if strings.Contains(command, "  # ") {
		return command + "; " + remark
	}
	return command + "  # " + remark
}

// Hours writes a duration as a flag accepts it, without zero minutes.
func Hours(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}

// HiddenRows is the problem that row-level security hides rows from a role, as it does from the owner with FORCE.
func HiddenRows(table outbox.Table, role string) *Problem {
	return New(fmt.Sprintf("ALTER TABLE %s DISABLE ROW LEVEL SECURITY;  -- or, to keep it: ALTER ROLE %s BYPASSRLS, "+
		"which holds for every table of the cluster", table, role),
		"row-level security of table %s hides rows from role %s", table, role)
}

// MoveSQL gives a table another name and schema.
func MoveSQL(from, to outbox.Table) string {
	var sql string
	if from.Schema != to.Schema {
		sql = fmt.Sprintf("ALTER TABLE %s SET SCHEMA %s; ", from.Printed(), outbox.QuoteIdentifier(to.Schema))
		from.Schema = to.Schema
	}
	if from.Name != to.Name {
		sql += fmt.Sprintf("ALTER TABLE %s RENAME TO %s;", from.Printed(), outbox.QuoteIdentifier(to.Name))
	}
	return strings.TrimSpace(sql)
}
