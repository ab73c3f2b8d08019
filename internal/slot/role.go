package slot

import (
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// MayReplicateSQL is the condition for roles r of pg_roles that may stream. On RDS a membership allows it.
const MayReplicateSQL = `(r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_catalog.pg_roles s
         WHERE s.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, s.oid, 'MEMBER')))`

// RoleProblem says that a role may not stream.
func RoleProblem(user string, err error) *problem.Problem {
	role := outbox.Identifier(user)
	found := problem.Of(err, ReplicationGrant(user)+";  -- as a superuser; on RDS: GRANT rds_replication TO "+role+
		"; or run with --mode poll", "role %s may not replicate", role)
	found.Denied = true
	return found
}

// ReplicationGrant returns SQL that lets a role stream. RDS needs another one.
func ReplicationGrant(user string) string {
	return "ALTER ROLE " + outbox.Identifier(user) + " REPLICATION"
}
