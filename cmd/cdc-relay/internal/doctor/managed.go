package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// Service is what runs the Postgres server. Users of a managed service are not superusers, and settings are changed in
// another way.
type Service struct {
	name string // for people; "": the user's own server
	role string // a role that exists only there

	logical   string // the command that turns logical decoding on
	set       string // the command for another setting, with its name and value; "": it cannot be set
	replicate string // the SQL that lets a role stream; "": the usual SQL
}

// Words in capitals in the commands are for the user to replace.
func managedServices() []Service {
	const (
		rdsParameter   = "aws rds modify-db-parameter-group --db-parameter-group-name GROUP --parameters "
		rdsAurora      = "  # Aurora: modify-db-cluster-parameter-group"
		alloyFlag      = "gcloud alloydb instances update INSTANCE --cluster=CLUSTER --region=REGION --database-flags="
		azureParameter = "az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER "
		supabaseConfig = "supabase --experimental --project-ref PROJECT postgres-config update --config "
	)
	return []Service{
		{
			name: "Amazon RDS or Aurora", role: "rds_superuser",
			logical: rdsParameter +
				"ParameterName=rds.logical_replication,ParameterValue=1,ApplyMethod=pending-reboot" + rdsAurora + "\n" +
				"aws rds reboot-db-instance --db-instance-identifier INSTANCE",
			set:       rdsParameter + "ParameterName=%s,ParameterValue=%s,ApplyMethod=METHOD" + rdsAurora,
			replicate: `GRANT rds_replication TO %s;`,
		},
		{
			name: "Google Cloud SQL", role: "cloudsqlsuperuser",
			logical: "gcloud sql instances patch INSTANCE --database-flags=cloudsql.logical_decoding=on" +
				"  # repeat all other flags of the instance again; it restarts",
			set: "gcloud sql instances patch INSTANCE --database-flags=%s=%s" +
				"  # repeat all other flags of the instance again",
			replicate: `ALTER USER %s WITH REPLICATION;  -- as a user with cloudsqlsuperuser`,
		},
		{
			name: "Google AlloyDB", role: "alloydbsuperuser",
			logical:   alloyFlag + "alloydb.logical_decoding=on  # repeat all other flags again; it restarts",
			set:       alloyFlag + "%s=%s  # repeat all other flags again",
			replicate: `ALTER USER %s WITH REPLICATION;  -- as a user with alloydbsuperuser`,
		},
		{
			name: "Azure Database for PostgreSQL", role: "azure_pg_admin",
			logical: azureParameter + "--name wal_level --value logical\n" +
				"az postgres flexible-server restart --resource-group GROUP --name SERVER",
			set:       azureParameter + "--name %s --value %s",
			replicate: `ALTER ROLE %s WITH REPLICATION;  -- as the server's admin user`,
		},
		{
			name: "Neon", role: "neon_superuser",
			logical: "curl -X PATCH https://console.neon.tech/api/v2/projects/PROJECT " +
				`-H "Authorization: Bearer $NEON_API_KEY" -H 'Content-Type: application/json' ` +
				`-d '{"project": {"settings": {"enable_logical_replication": true}}}'`,
			replicate: "-- use a role that was made in the Neon console, by its CLI or by its API: " +
				"those may replicate. Else, as such a role: ALTER ROLE %s REPLICATION;",
		},
		{
			name: "Supabase", role: "supabase_admin",
			logical:   supabaseConfig + "wal_level=logical",
			set:       supabaseConfig + "%s=%s",
			replicate: `ALTER ROLE %s REPLICATION;  -- as postgres`,
		},
	}
}

// managedRoles are the roles that identify the services.
func managedRoles() (roles []string) {
	for _, m := range managedServices() {
		roles = append(roles, m.role)
	}
	return roles
}

// service returns the service that has these roles. Some services also have roles of another one, so the order matters.
func service(roles []string) Service {
	for _, m := range managedServices() {
		if slices.Contains(roles, m.role) {
			return m
		}
	}
	return Service{}
}

// setting returns how to set a parameter; the value is in the format of postgresql.conf and ALTER SYSTEM. restart: the
// server must be restarted.
func (m Service) setting(name, value string, restart bool) steps {
	switch {
	case m.Own() && restart:
		return lines(sql("ALTER SYSTEM SET %s = '%s'", name, value), remark("-- and restart Postgres"))
	case m.Own():
		return lines(sql("ALTER SYSTEM SET %s = '%s'", name, value), sql("SELECT pg_reload_conf()"))
	case m.set == "":
		return remark("-- %s sets %s itself: ask its support", m.name, name)
	}
	set := fmt.Sprintf(m.set, name, m.plain(value))
	if restart {
		return lines(pasted(strings.Replace(set, "METHOD", "pending-reboot", 1)), remark("# and restart the server"))
	}
	return pasted(strings.Replace(set, "METHOD", "immediate", 1))
}

// plain returns a value without its unit: services accept only milliseconds and megabytes. RDS writes 1 for on.
func (m Service) plain(value string) string {
	gigabytes, isSize := strings.CutSuffix(value, "GB")
	switch {
	case value == "on" && m.role == "rds_superuser":
		return "1"
	case isSize:
		n, _ := strconv.Atoi(gigabytes)
		return strconv.Itoa(n * 1024)
	case strings.HasSuffix(value, "s"):
		return strings.TrimSuffix(value, "s") + "000"
	}
	return value
}

// logicalWAL returns how to turn logical decoding on.
func (m Service) logicalWAL() steps {
	if m.Own() {
		return lines(m.setting("wal_level", "logical", true), orPoll())
	}
	return lines(pasted(m.logical), orPoll())
}

func orPoll() steps { return remark("-- or, without streaming: cdc-relay run --mode poll") }

// pasted are lines of our own, without names of the server.
func pasted(text string) (all steps) {
	for line := range strings.SplitSeq(text, "\n") {
		all = append(all, hintFix(line)...)
	}
	return all
}

// replication returns the SQL that lets a role stream.
func (m Service) replication(role string) steps {
	if m.replicate == "" {
		return lines(sql("%s", slot.ReplicationGrant(role)), orPoll())
	}
	return lines(hintFix(strings.ReplaceAll(m.replicate, "%s", quote(role))), orPoll())
}

// FindService asks which service runs the server.
func FindService(ctx context.Context, conn *pgx.Conn) (Service, error) {
	var roles []string
	err := conn.QueryRow(ctx, `SELECT array(SELECT rolname::text FROM pg_catalog.pg_roles WHERE rolname = ANY ($1))`,
		managedRoles()).Scan(&roles)
	if err != nil {
		return Service{}, fmt.Errorf("look for the service that runs Postgres: %w", err)
	}
	return service(roles), nil
}

// Own reports whether the users run the server themselves.
func (m Service) Own() bool { return m.name == "" }

// Replication returns the statement that lets a role stream, and the line for a person who has to run it.
func (m Service) Replication(role string) (statement, hint string) {
	hint = m.replication(role)[0].line()
	if m.Own() {
		hint += "  -- as a superuser"
	}
	if statement, _, _ = strings.Cut(m.replicate, ";"); strings.HasPrefix(statement, "GRANT ") {
		return fmt.Sprintf(statement, quote(role)), hint
	}
	return slot.ReplicationGrant(role), hint
}
