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
	kind kind
	// object is the name of the object; that of a database or a schema is in Name.
	object outbox.Table
	// parameters are those of a function.
	parameters string
	privileges []string
	// columns limit the privileges; nil: the whole table.
	columns []string
}

// kind is a kind of objects, as missingSQL knows it.
type kind string

const (
	onDatabase kind = "DATABASE"
	onSchema   kind = "SCHEMA"
	onTable    kind = "TABLE"
	onSequence kind = "SEQUENCE"
	onFunction kind = "FUNCTION"
)

// To returns the statement without a semicolon, on one line. The grantee is quoted as in SQL, or PUBLIC.
func (g Grant) To(grantee string) string {
	what, object := strings.Join(g.privileges, ", "), g.object.Printed()
	if g.columns != nil {
		what += " (" + strings.Join(g.columns, ", ") + ")"
	}
	switch g.kind {
	case onDatabase, onSchema:
		object = string(g.kind) + " " + outbox.QuoteIdentifier(g.object.Name)
	case onSequence:
		object = "SEQUENCE " + object
	case onFunction:
		object = "FUNCTION " + object + "(" + g.parameters + ")"
	case onTable:
	}
	return fmt.Sprintf("GRANT %s ON %s TO %s", what, object, grantee)
}

// name returns the name of the object for the functions that look up privileges.
func (g Grant) name() string {
	switch g.kind {
	case onDatabase, onSchema:
		return g.object.Name
	case onFunction:
		return g.object.SQL() + "(" + g.parameters + ")"
	case onTable, onSequence:
	}
	return g.object.SQL()
}

// Connect lets a role connect to a database. Usually every role may.
func Connect(database string) Grant {
	return Grant{kind: onDatabase, object: outbox.Table{Name: database}, privileges: []string{"CONNECT"}}
}

// Usage lets a role use the tables of a schema.
func Usage(schema string) Grant {
	return Grant{kind: onSchema, object: outbox.Table{Name: schema}, privileges: []string{"USAGE"}}
}

// Insert lets an application insert messages, and set no column of the relay's own.
func Insert(table outbox.Table) Grant {
	return Grant{
		kind: onTable, object: table, privileges: []string{"INSERT"}, columns: schema.Insert(),
	}
}

// Returning lets an application read the columns that ORMs ask for with INSERT … RETURNING.
func Returning(table outbox.Table) Grant {
	return Grant{
		kind: onTable, object: table, privileges: []string{"SELECT"}, columns: schema.Returning(),
	}
}

// Sequence lets a relay read the newest id.
func Sequence(sequence outbox.Table) Grant {
	return Grant{kind: onSequence, object: sequence, privileges: []string{"SELECT"}}
}

// Version lets a relay read the version of the tables.
func Version(table outbox.Table) Grant {
	return Grant{kind: onTable, object: migrations.VersionTable(table), privileges: []string{"SELECT"}}
}

// Rotate lets a relay create and drop the partitions of the history.
func Rotate(table outbox.Table) Grant {
	return Grant{
		kind: onFunction, object: table.RotatePublished(), parameters: "interval", privileges: []string{"EXECUTE"},
	}
}

// App returns what an application needs to insert messages.
func App(table outbox.Table, insertOnly bool) []Grant {
	all := []Grant{Usage(table.Schema), Insert(table)}
	if !insertOnly {
		all = append(all, Returning(table))
	}
	return all
}

// Calls returns what an application needs to call the functions, and to do nothing else.
func Calls(table outbox.Table) []Grant {
	all := []Grant{Usage(table.Schema)}
	for _, f := range migrations.Functions(table) {
		all = append(all, Grant{
			kind: onFunction, object: f.Name, parameters: f.Parameters, privileges: []string{"EXECUTE"},
		})
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
		all = append(all, Grant{kind: onTable, object: need.Table, privileges: privileges})
	}
	if o.History {
		need := schema.HistoryNeed(o.Table)
		all = append(all, Grant{kind: onTable, object: need.Table, privileges: need.Privileges}, Rotate(o.Table))
	}
	if o.Sequence != (outbox.Table{}) {
		all = append(all, Sequence(o.Sequence))
	}
	return append(all, Version(o.Table))
}
