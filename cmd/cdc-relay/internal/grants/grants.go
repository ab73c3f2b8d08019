// Package grants lists the privileges that a relay and an application need, and grants those that a role lacks. It is
// the only list: setup grants it, setup --print-sql prints it, and check prints what is missing.
package grants

import (
	"fmt"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Grant gives privileges on one object.
type Grant struct {
	// kind is the kind of the object, as hasSQL knows it; name is its name for the functions that look up privileges.
	kind, name string
	// on is the object as GRANT writes it.
	on         string
	privileges []string
	// columns limit the privileges; nil: the whole table.
	columns []string
}

// To returns the statement without a semicolon, on one line. The grantee is quoted as in SQL, or PUBLIC.
func (g Grant) To(grantee string) string {
	what := strings.Join(g.privileges, ", ")
	if g.columns != nil {
		what += " (" + strings.Join(g.columns, ", ") + ")"
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s", what, g.on, grantee)
}

// container is a grant on a database or a schema.
func container(kind, name, privilege string) Grant {
	return Grant{kind, name, kind + " " + outbox.QuoteIdentifier(name), []string{privilege}, nil}
}

// columns is a grant on columns of a table; nil: on the whole table.
func columns(table outbox.Table, columns []string, privileges ...string) Grant {
	return Grant{"TABLE", table.SQL(), table.Printed(), privileges, columns}
}

func execute(f migrations.Function) Grant {
	on := fmt.Sprintf("FUNCTION %s(%s)", f.Name.Printed(), f.Parameters)
	return Grant{"FUNCTION", f.SQL(), on, []string{"EXECUTE"}, nil}
}

// Connect lets a role connect to a database. Usually every role may.
func Connect(database string) Grant { return container("DATABASE", database, "CONNECT") }

// Usage lets a role use the tables of a schema.
func Usage(schema string) Grant { return container("SCHEMA", schema, "USAGE") }

// Insert lets an application insert messages, and set no column of the relay's own.
func Insert(table outbox.Table) Grant { return columns(table, schema.Insert(), "INSERT") }

// Returning lets an application read the columns that ORMs ask for with INSERT … RETURNING.
func Returning(table outbox.Table) Grant { return columns(table, schema.Returning(), "SELECT") }

// Sequence lets a relay read the newest id.
func Sequence(sequence outbox.Table) Grant { return onSequence(sequence, "SELECT") }

// Draw lets an application read the id that it inserted with lastval or currval, and draw one with nextval. It gives no
// power over others: an INSERT that is rolled back also uses up an id.
func Draw(sequence outbox.Table) Grant { return onSequence(sequence, "USAGE") }

func onSequence(sequence outbox.Table, privilege string) Grant {
	return Grant{"SEQUENCE", sequence.SQL(), "SEQUENCE " + sequence.Printed(), []string{privilege}, nil}
}

// Version lets a relay read the version of the tables, and lock the table so that it is the only leader.
func Version(table outbox.Table) Grant {
	return columns(migrations.VersionTable(table), nil, "SELECT", "UPDATE")
}

// Report lets a relay tell others what it does.
func Report(table outbox.Table) Grant {
	need := schema.ReportNeed(table)
	return columns(need.Table, nil, need.Privileges...)
}

// Rotate lets a relay create and drop the partitions of the history.
func Rotate(table outbox.Table) Grant {
	return execute(migrations.Function{Name: table.RotatePublished(), Parameters: "interval"})
}

// App returns what an application needs to insert messages. The sequence is that of the column id; empty: none.
func App(table, sequence outbox.Table, insertOnly bool) []Grant {
	all := []Grant{Usage(table.Schema), Insert(table)}
	if insertOnly {
		return all
	}
	all = append(all, Returning(table))
	if sequence != (outbox.Table{}) {
		all = append(all, Draw(sequence))
	}
	return all
}

// Calls returns what an application needs to call the functions, and to do nothing else.
func Calls(table outbox.Table) []Grant {
	all := []Grant{Usage(table.Schema)}
	for _, f := range migrations.Functions(table) {
		all = append(all, execute(f))
	}
	return all
}

// Outbox says what a relay works with.
type Outbox struct {
	Table outbox.Table
	// Sequence is that of the column id; empty: there is none.
	Sequence outbox.Table
	// History: the relay keeps published messages.
	History bool
	// DeletesDeadLetters: the relay deletes old dead letters.
	DeletesDeadLetters bool
}

// Relay returns what a relay needs, except what only a superuser can grant: REPLICATION and pg_read_all_stats.
func Relay(o Outbox) []Grant {
	all := []Grant{Usage(o.Table.Schema)}
	for _, need := range schema.Needs(o.Table) {
		privileges := need.Privileges
		if need.Table == o.Table.DeadLetter() && o.DeletesDeadLetters {
			privileges = append(privileges, "DELETE")
		}
		all = append(all, columns(need.Table, nil, privileges...))
	}
	if o.History {
		need := schema.HistoryNeed(o.Table)
		all = append(all, columns(need.Table, nil, need.Privileges...), Rotate(o.Table))
	}
	if o.Sequence != (outbox.Table{}) {
		all = append(all, Sequence(o.Sequence))
	}
	return append(all, Version(o.Table), Report(o.Table))
}
