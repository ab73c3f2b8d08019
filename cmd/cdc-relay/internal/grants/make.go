package grants

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// ErrDenied says that the role of the session may not grant something.
var ErrDenied = errors.New("permission denied")

// Make grants a role what it lacks of all, in one transaction, and returns that. Several sessions may do so at once.
// The role must exist.
func Make(ctx context.Context, conn *pgx.Conn, role string, all []Grant) (made []Grant, err error) {
	err = migrations.Together(ctx, conn, outbox.Table{}, func(tx pgx.Tx) (err error) {
		if made, err = missing(ctx, tx, role, all); err != nil {
			return err
		}
		for _, g := range made {
			_, err := tx.Exec(ctx, g.To(outbox.QuoteIdentifier(role)))
			if pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
				return denied(g, role)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", g.To(outbox.Identifier(role)), err)
			}
		}
		// A session that may use an object, but not grant it, gets only a warning.
		left, err := missing(ctx, tx, role, made)
		if err == nil && len(left) > 0 {
			return denied(left[0], role)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

func denied(g Grant, role string) error {
	return fmt.Errorf("%s: %w", g.To(outbox.Identifier(role)), ErrDenied)
}

// Has reports whether a role has all privileges of a grant, in any way. The role must exist.
func Has(ctx context.Context, conn *pgx.Conn, role string, g Grant) (bool, error) {
	left, err := missing(ctx, conn, role, []Grant{g})
	return err == nil && len(left) == 0, err
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// missing returns the grants of which the role lacks something.
func missing(ctx context.Context, db querier, role string, all []Grant) (left []Grant, err error) {
	for _, g := range all {
		columns := g.columns
		if columns == nil {
			columns = []string{""}
		}
		var has bool
		err := db.QueryRow(ctx, hasSQL, role, g.kind, g.name, g.privileges, columns).Scan(&has)
		if err != nil {
			return nil, fmt.Errorf("look for the privileges of role %s: %w", outbox.Identifier(role), err)
		}
		if !has {
			left = append(left, g)
		}
	}
	return left, nil
}

const hasSQL = `
SELECT pg_catalog.bool_and(CASE $2::text
  WHEN 'DATABASE' THEN pg_catalog.has_database_privilege(r.oid, $3::text, p)
  WHEN 'SCHEMA' THEN pg_catalog.has_schema_privilege(r.oid, $3::text, p)
  WHEN 'SEQUENCE' THEN pg_catalog.has_sequence_privilege(r.oid, $3::text, p)
  WHEN 'FUNCTION' THEN pg_catalog.has_function_privilege(r.oid, $3::text, p)
  ELSE CASE c WHEN '' THEN pg_catalog.has_table_privilege(r.oid, $3::text, p)
       ELSE pg_catalog.has_column_privilege(r.oid, $3::text, c, p) END
  END)
FROM pg_catalog.pg_roles r, pg_catalog.unnest($4::text[]) p, pg_catalog.unnest($5::text[]) c
WHERE r.rolname = $1`

// SequenceOf returns the sequence of the column id; an empty one: there is none.
func SequenceOf(ctx context.Context, conn *pgx.Conn, table outbox.Table) (sequence outbox.Table, err error) {
	err = conn.QueryRow(ctx, `
SELECT n.nspname, s.relname
FROM pg_catalog.pg_class s JOIN pg_catalog.pg_namespace n ON n.oid = s.relnamespace
WHERE s.oid = pg_catalog.to_regclass(pg_catalog.pg_get_serial_sequence($1, 'id'))::oid`, table.SQL()).
		Scan(&sequence.Schema, &sequence.Name)
	if errors.Is(err, pgx.ErrNoRows) {
		return outbox.Table{}, nil
	}
	if err != nil {
		return sequence, fmt.Errorf("look for the sequence of %s: %w", table, err)
	}
	return sequence, nil
}

// Role is what matters of a role besides its privileges.
type Role struct {
	Login bool
	// Replicates: it may stream.
	Replicates bool
	// SeesOthers: it sees the activity of other roles.
	SeesOthers bool
}

// FindRole returns a role; false: it does not exist.
func FindRole(ctx context.Context, conn *pgx.Conn, name string) (role Role, there bool, err error) {
	err = conn.QueryRow(ctx, `
SELECT r.rolcanlogin, `+slot.MayReplicateSQL+`,
       pg_catalog.pg_has_role(r.oid, 'pg_read_all_stats', 'USAGE')
FROM pg_catalog.pg_roles r WHERE r.rolname = $1`, name).Scan(&role.Login, &role.Replicates, &role.SeesOthers)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Role{}, false, nil
	case err != nil:
		return Role{}, false, fmt.Errorf("look for role %s: %w", outbox.Identifier(name), err)
	}
	return role, true, nil
}
