package operator

import (
	"context"

	"github.com/jackc/pgerrcode"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Database tells databases apart.
type Database struct {
	// System is the system identifier of the server; "": the role may not read it.
	System string `json:"system"`
	Name   string `json:"name"`
}

// Database returns which database this is. It asks once, because that cannot change for a connection.
func (t *Tables) Database(ctx context.Context) (Database, error) {
	if t.database.Name != "" {
		return t.database, nil
	}
	ctx, cancel := context.WithTimeout(ctx, glanceTimeout)
	defer cancel()
	var d Database
	err := t.conn.QueryRow(ctx, `SELECT pg_catalog.current_database()::text, s.system_identifier::text
		FROM pg_catalog.pg_control_system() s`).Scan(&d.Name, &d.System)
	if pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		err = t.conn.QueryRow(ctx, `SELECT pg_catalog.current_database()::text`).Scan(&d.Name)
	}
	if err == nil {
		t.database = d
	}
	return d, err
}

// Table returns the outbox.
func (t *Tables) Table() outbox.Table { return t.table }
