package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/grants"
	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/relay"
)

// streams reports whether relays with these settings stream.
func (c *config) streams() bool { return c.relay.Mode != relay.ModePoll && !c.tablesOnly }

// checkRoles fails if a role does not exist.
func (r *setupReport) checkRoles(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	check := func(name, flag, attributes, by string) error {
		_, there, err := grants.FindRole(ctx, conn, name)
		if err != nil || there {
			return err
		}
		return problem.New(
			fmt.Sprintf("CREATE ROLE %s LOGIN%s PASSWORD '...';  -- as %s; then run this again",
				outbox.Identifier(name), attributes, by),
			"role %s of --%s does not exist", outbox.Identifier(name), flag)
	}
	const creator = "a superuser, or a role with CREATEROLE"
	for _, name := range cfg.checking.appRoles {
		if err := check(name, "app-role", "", creator); err != nil {
			return err
		}
	}
	if name := cfg.checking.relayRole; name != "" {
		service, err := doctor.FindService(ctx, conn)
		if err != nil {
			return err
		}
		if cfg.streams() && service.Own() {
			return check(name, "relay-role", " REPLICATION", "a superuser")
		}
		return check(name, "relay-role", "", creator)
	}
	return nil
}

// grantAll grants the roles what they lack.
func (r *setupReport) grantAll(ctx context.Context, conn *pgx.Conn, cfg *config) error {
	for _, role := range cfg.checking.appRoles {
		if err := r.grantApp(ctx, conn, cfg, role); err != nil {
			return err
		}
	}
	if cfg.checking.relayRole == "" {
		return nil
	}
	return r.grantRelay(ctx, conn, cfg, cfg.checking.relayRole)
}

// grant grants what the role lacks, and says what it may do.
func (r *setupReport) grant(
	ctx context.Context, conn *pgx.Conn, role, may string, all []grants.Grant,
) error {
	made, err := grants.Make(ctx, conn, role, append([]grants.Grant{grants.Connect(conn.Config().Database)}, all...))
	switch {
	case err != nil:
		return err
	case len(made) == 0:
		r.found("role %s may %s: nothing to do", outbox.Identifier(role), may)
	default:
		r.did("role %s may %s", outbox.Identifier(role), may)
	}
	return nil
}

// grantApp lets an application send messages.
func (r *setupReport) grantApp(ctx context.Context, conn *pgx.Conn, cfg *config, role string) error {
	table := cfg.relay.Table
	sequence, err := grants.SequenceOf(ctx, conn, table)
	if err != nil {
		return err
	}
	may, all := cfg.application(sequence)
	err = r.grant(ctx, conn, role, may, all)
	if err != nil || cfg.functions || !cfg.checking.appInsertOnly {
		return err
	}
	reads, err := grants.Has(ctx, conn, role, grants.Returning(table))
	if err == nil && reads {
		r.warn("role %s may read more than --app-insert-only grants: REVOKE SELECT (%s) ON %s FROM %s;",
			outbox.Identifier(role), strings.Join(schema.Returning(), ", "), table.Printed(),
			outbox.QuoteIdentifier(role))
	}
	return err
}

// application returns what an application may do, and the grants for it. The sequence is that of the column id.
func (c *config) application(sequence outbox.Table) (may string, all []grants.Grant) {
	table := c.relay.Table
	switch {
	case c.functions:
		return "call the functions of " + table.String(), grants.Calls(table)
	case c.checking.appInsertOnly:
		return "insert into " + table.String(), grants.App(table, sequence, true)
	}
	columns := strings.Join(schema.Returning(), " and ")
	return fmt.Sprintf("insert into %s, and read %s", table, columns), grants.App(table, sequence, false)
}

// grantRelay gives the relay's role what a relay needs.
func (r *setupReport) grantRelay(ctx context.Context, conn *pgx.Conn, cfg *config, role string) error {
	needs := cfg.outbox()
	var err error
	if needs.Sequence, err = grants.SequenceOf(ctx, conn, cfg.relay.Table); err != nil {
		return err
	}
	may := "run a relay of " + cfg.relay.Table.String()
	if err := r.grant(ctx, conn, role, may, grants.Relay(needs)); err != nil || !cfg.streams() {
		return err
	}
	is, _, err := grants.FindRole(ctx, conn, role)
	if err != nil {
		return err
	}
	name := outbox.Identifier(role)
	if !is.Login {
		r.warn("role %s cannot log in, and its members do not inherit REPLICATION: set --relay-role to a member", name)
	}
	if !is.SeesOthers {
		switch given, err := r.give(ctx, conn, statsGrant(role)); {
		case err != nil:
			return err
		case given:
			r.did("role %s sees other sessions (pg_read_all_stats)", name)
		default:
			r.warn("role %s cannot name the sessions of others that delay it: "+
				"%s;  -- as a superuser", name, statsGrant(role))
		}
	}
	if is.Replicates {
		return nil
	}
	service, err := doctor.FindService(ctx, conn)
	if err != nil {
		return err
	}
	statement, hint := service.Replication(role)
	given, err := r.give(ctx, conn, statement)
	switch {
	case err != nil:
		return err
	case !given:
		return problem.New(hint, "role %s may not replicate, and only a superuser can change that", name)
	}
	r.did("role %s may replicate, and so read every change in the cluster", name)
	return nil
}

func statsGrant(role string) string {
	return "GRANT pg_read_all_stats TO " + outbox.QuoteIdentifier(role)
}

// give runs a statement; false: the role of the session may not.
func (r *setupReport) give(ctx context.Context, conn *pgx.Conn, statement string) (bool, error) {
	_, err := conn.Exec(ctx, statement)
	switch {
	case pgcode.Is(err, pgerrcode.InsufficientPrivilege):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", statement, err)
	}
	return true, nil
}

// outbox is what the relay's role works with. The sequence has the usual name.
func (c *config) outbox() grants.Outbox {
	return grants.Outbox{
		Table: c.relay.Table, Sequence: migrations.UsualSequence(c.relay.Table), History: c.relay.KeepPublished > 0,
		DeletesDeadLetters: c.relay.DeadLetterRetention > 0,
	}
}

// grantsSQL returns the grants of setup for psql. Without the name of a role they are comments: the administrator
// chooses one.
func grantsSQL(cfg *config) string {
	relays, apps := cfg.checking.relayRole, cfg.checking.appRoles
	role := cmp.Or(relays, "cdc_relay")
	statements, heading, attribute := lines(grants.Relay(cfg.outbox()), role), "The relay.", ""
	if cfg.streams() {
		heading, attribute = "The relay. Only a superuser can grant REPLICATION and pg_read_all_stats.", " REPLICATION"
		statements = append(statements, statsGrant(role)+";")
		if relays != "" {
			const rds = ";  -- on RDS: GRANT rds_replication"
			statements = append(statements, slot.ReplicationGrant(role)+rds)
		}
	}
	text := section(heading, relays != "",
		"CREATE ROLE "+outbox.QuoteIdentifier(role)+" LOGIN"+attribute+" PASSWORD '...';", statements)
	_, all := cfg.application(migrations.UsualSequence(cfg.relay.Table))
	if len(apps) == 0 {
		apps = []string{"application"}
	}
	for _, name := range apps {
		text += section("An application.", len(cfg.checking.appRoles) > 0,
			"CREATE ROLE "+outbox.QuoteIdentifier(name)+" LOGIN PASSWORD '...';", lines(all, name))
	}
	return text
}

func lines(all []grants.Grant, role string) []string {
	var text []string
	for _, g := range all {
		text = append(text, g.To(outbox.QuoteIdentifier(role))+";")
	}
	return text
}

// section returns statements with a heading. If the role is not known to exist, they are comments, and create it.
func section(heading string, exists bool, create string, statements []string) string {
	text := "\n-- " + heading + "\n"
	if !exists {
		statements = append([]string{create}, statements...)
	}
	for _, statement := range statements {
		if !exists {
			text += "-- "
		}
		text += statement + "\n"
	}
	return text
}
