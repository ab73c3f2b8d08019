package migrations

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Column is the expected definition of a column.
type Column struct {
	Name    string
	Type    string // as format_type writes it
	NotNull bool
	// Default is an expression, or GENERATED …; empty: none.
	Default string
}

// Definition is the column as CREATE TABLE writes it.
func (c Column) Definition() string {
	text := outbox.QuoteIdentifier(c.Name) + " " + c.Type
	if c.NotNull {
		text += " NOT NULL"
	}
	switch {
	case strings.HasPrefix(c.Default, "GENERATED"):
		text += " " + c.Default
	case c.Default != "":
		text += " DEFAULT " + c.Default
	}
	return text
}

// Add returns the statement that adds the column to a table that may have rows. Existing dead letters get a value that
// changes nothing for a requeue; for IDs and the routing key there is none.
func (c Column) Add(table, of outbox.Table) string {
	values := map[string]string{
		"attempts":       "0",
		"schema_version": "1",
		"created_at":     "now()",
		"failure_reason": "'unknown'",
	}
	if of == table.DeadLetter() && c.NotNull && c.Default == "" {
		c.Default = values[c.Name]
	}
	return fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s;", of.Printed(), c.Definition())
}

// Columns returns the columns of the outbox, of its dead-letter table or of its history, read from the SQL that creates
// them.
func Columns(table, of outbox.Table) ([]Column, error) {
	script, err := scriptOf(table, of)
	if err != nil {
		return nil, err
	}
	var columns []Column
	line := regexp.MustCompile(`(?m)^    ([a-z_]+) +([a-z]+)( +NOT NULL)?(?: +DEFAULT (.+?)| +(GENERATED .+?))?,?$`)
	for _, m := range line.FindAllStringSubmatch(script, -1) {
		c := Column{Name: m[1], Type: m[2], NotNull: m[3] != "" || m[5] != "", Default: m[4] + m[5]}
		if c.Type == "timestamptz" {
			c.Type = "timestamp with time zone"
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// Index is the expected definition of an index.
type Index struct {
	Columns []string
	// Predicate is the condition as CREATE INDEX writes it; empty: none.
	Predicate string
	Primary   bool
}

// Indexes returns the indexes of the outbox or of its dead-letter table, read from the SQL that creates them.
func Indexes(table, of outbox.Table) ([]Index, error) {
	script, err := scriptOf(table, of)
	if err != nil {
		return nil, err
	}
	var indexes []Index
	primary := regexp.MustCompile(`(?m)^    CONSTRAINT .+ PRIMARY KEY \(([a-z_, ]+)\)$`)
	for _, m := range primary.FindAllStringSubmatch(script, -1) {
		indexes = append(indexes, Index{Columns: strings.Split(m[1], ", "), Primary: true})
	}
	other := regexp.MustCompile(`(?m)^CREATE INDEX .+ \(([a-z_, ]+)\)(?:\n    WHERE ([a-z_]+ IS NOT NULL))?;$`)
	for _, m := range other.FindAllStringSubmatch(script, -1) {
		indexes = append(indexes, Index{Columns: strings.Split(m[1], ", "), Predicate: m[2]})
	}
	return indexes, nil
}

func scriptOf(table, of outbox.Table) (string, error) {
	if of == table.Published() {
		return HistorySQL(table)
	}
	return steps(table, of)[0].sql, nil
}
