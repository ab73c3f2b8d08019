package doctor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// timesSQL reads the oldest and the newest rows: a row that waits for its time is among the oldest.
const timesSQL = `
SELECT jsonb_build_object('rows', count(*) FILTER (WHERE ahead),
  'latest', (max(created_at) FILTER (WHERE ahead))::text,
  'expired', count(*) FILTER (WHERE expires_at <= clock_timestamp()),
  'newer', count(*) FILTER (WHERE schema_version > $1), 'NewestVersion', max(schema_version))
FROM (SELECT r.*, created_at > clock_timestamp() + interval '5 minutes' AS ahead FROM (
  (SELECT id, created_at, expires_at, schema_version FROM %TABLE% ORDER BY id LIMIT 1000) UNION
  (SELECT id, created_at, expires_at, schema_version FROM %TABLE% ORDER BY id DESC LIMIT 1000)) r) r`

// timesFacts count rows among the oldest and newest: created in the future, expired, or for a newer relay.
type timesFacts struct {
	Rows, Expired int64
	Latest        string
	// Newer counts rows with a schema_version that this relay does not know; NewestVersion is the highest.
	Newer         int64
	NewestVersion int
}

// judgeTimes reports nothing if the rows cannot be read: another check reports why.
func (j *databaseJudge) judgeTimes(c chart) {
	f, table := j.f.times.value, j.o.Table.Printed()
	if f.Newer > 0 {
		newer := remark("-- run relays that know schema_version %d; or, if it is a mistake of the application:",
			f.NewestVersion)
		update := sql("UPDATE %s SET schema_version = %d WHERE schema_version > %[2]d", table, outbox.SchemaVersion)
		c.warn("schema_version", lines(newer, update),
			"%s of those examined have a schema_version above %d, up to %d: this relay leaves them in the table",
			counted(f.Newer, "row", "rows"), outbox.SchemaVersion, f.NewestVersion)
	}
	if f.Expired > 0 {
		update := sql("UPDATE %s SET expires_at = NULL WHERE expires_at <= now()", table)
		c.warn("expires_at", update.noted("publishes them nevertheless"),
			"%s of those examined have expired: the relay does not publish them (--on-expired)",
			counted(f.Expired, "row", "rows"))
	}
	if f.Rows > 0 {
		update := sql("UPDATE %s SET created_at = now() WHERE created_at > now() + interval '5 minutes'", table)
		c.warn("created_at",
			lines(update, remark("-- and leave created_at out of the INSERT: its default is the clock of Postgres")),
			"%s of those examined were created in the future, up to %s: "+
				"while no relay streams they wait until then, and their age is wrong",
			counted(f.Rows, "row", "rows"), f.Latest)
	}
}

// textualSQL counts payloads among the newest rows that are JSON text inside a JSON string. It reads no large ones.
const textualSQL = `
SELECT to_jsonb(count(*)) FROM (SELECT CASE WHEN pg_column_size(payload) < 8160 THEN payload END AS payload
                                FROM %TABLE% ORDER BY id DESC LIMIT 100) newest
WHERE json_typeof(payload) = 'string' AND payload::text ~ '^\s*"\s*(\{.*\}|\[.*\])(\s|\\[nrt])*"\s*$'`

func (j *databaseJudge) judgePayloads(c chart) {
	if n := j.f.textual.value; n > 0 {
		c.warn("payload", remark("-- give the client library an object, not text that is JSON already"),
			`of the newest 100 waiting rows, %s JSON text inside a JSON string, such as "{\"a\": 1}"`,
			counted(n, "payload is", "payloads are"))
	}
}

// askIdentity asks the server whether it would reject the deletes and updates of the relay. EXPLAIN runs nothing.
func (o Options) askIdentity(ctx context.Context, s *session) *problem.Problem {
	explained := read(ctx, s, func(tx pgx.Tx) (any, error) {
		const both = "EXPLAIN DELETE FROM %[1]s WHERE id = 0; EXPLAIN UPDATE %[1]s SET attempts = attempts WHERE id = 0"
		_, err := tx.Exec(ctx, fmt.Sprintf(both, o.Table.SQL()), pgx.QueryExecModeSimpleProtocol)
		return nil, err
	})
	// If this question fails, the names of the publications are missing.
	return read(ctx, s, func(tx pgx.Tx) (*problem.Problem, error) {
		return schema.ExplainIdentity(ctx, tx, o.Table, explained.err), nil
	}).value
}
