package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// lockSession is a session that waits for the lock of a table, or holds it. The lock is a table lock on the version
// table, so it needs a privilege of the relay. Its transaction has neither a transaction id nor a snapshot, and holds
// back no vacuum. The server ends it after leaseFor of silence, also if the relay is paused or cut off.
type lockSession struct {
	conn *pgconn.PgConn
	// versions is the version table, as SQL. Shard is the part of the rows: relays of different shards lead together.
	versions string
	shard    outbox.Shard
	user     string
}

const (
	// leaseFor is how long the leader may be silent.
	leaseFor = "4s"
	// renewAfter is the age at which the transaction is renewed: monitors report old ones, and VACUUM, REINDEX or ALTER
	// TABLE wait for the lock. Between the two transactions another relay can take the lock, but it does nothing in the
	// first LateAfter. So the leader waits for the lock less than that.
	renewAfter = 5 * time.Second
	renewWait  = "200ms"
)

// connectLock opens the session. Other relays read its name, for which readyName is an example.
func connectLock(
	ctx context.Context, address pgdial.Address, table outbox.Table, shard outbox.Shard,
) (lockSession, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	config, err := address.Config()
	if err != nil {
		return lockSession{}, fmt.Errorf("read the address of Postgres: %w", err)
	}
	config.RuntimeParams["application_name"] = "cdc-relay standby"
	pgdial.Limit(config)
	pgdial.AsUTF8(config)
	pgdial.CatalogOnly(config)
	pgdial.AsWriter(config)
	conn, err := pgconn.ConnectConfig(ctx, config)
	return lockSession{conn, migrations.VersionTable(table).SQL(), shard, config.User}, err
}

func (s lockSession) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
	defer cancel()
	_ = s.conn.Close(ctx)
}

// closeWait is how long a clean end of a session may take.
const closeWait = 200 * time.Millisecond

func (s lockSession) query(ctx context.Context, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	return slot.Query(ctx, s.conn, sql)
}

// mode conflicts with itself and with that of shards, which do not conflict with one another.
func (s lockSession) mode() string {
	if s.shard.Whole() {
		return "SHARE UPDATE EXCLUSIVE"
	}
	return "SHARE"
}

// key is the advisory lock of a shard, as SQL. Any role can take it, but then the shard only has no leader.
func (s lockSession) key() string {
	return fmt.Sprintf("((%s::regclass::oid::int8 << 16) + %d)",
		outbox.QuoteLiteral(s.versions), s.shard.Of<<8+s.shard.Index)
}

// take takes the lock. Renews: the session holds it. It returns false if another session has it.
func (s lockSession) take(ctx context.Context, renews bool) (bool, error) {
	begin, wait, check := "", " NOWAIT", "true"
	if renews {
		begin, wait = "COMMIT; ", ""
	}
	if !s.shard.Whole() {
		check = "pg_try_advisory_xact_lock(" + s.key() + ")"
	}
	// The role may have other defaults. Before Postgres 17, there is no transaction_timeout.
	begin += `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = '` + renewWait + `'; SET LOCAL idle_in_transaction_session_timeout = '` + leaseFor + `';
LOCK TABLE ` + s.versions + ` IN ` + s.mode() + ` MODE` + wait + `;
SELECT ` + check + `,
  (SELECT pg_catalog.set_config(name, '0', true) FROM pg_settings WHERE name = 'transaction_timeout')`
	rows, err := s.query(ctx, begin)
	if err == nil && rows[0][0] == "t" {
		return true, nil
	}
	if err == nil || pgcode.Is(err, pgerrcode.LockNotAvailable) {
		_, err = s.query(ctx, "ROLLBACK")
		return false, err
	}
	if pgcode.Is(err, pgerrcode.InsufficientPrivilege) {
		return false, problem.Of(err, "GRANT UPDATE ON "+s.versions+" TO "+outbox.Identifier(s.user)+";",
			"role %s may not lock table %s", outbox.Identifier(s.user), s.versions)
	}
	return false, err
}

// leaveWord gives up the lock and says that this leader has ended well, in one transaction: no other relay has led in
// between. Only rows up to an id may have been published.
func (s lockSession) leaveWord(ctx context.Context, older int64) {
	if s.shard.Whole() { // the UPDATE would wait for the locks of other shards
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
		defer cancel()
		// If it fails, the next leader rests.
		_, _ = s.query(ctx, fmt.Sprintf("UPDATE %s SET ended_well = %s, older = %d; COMMIT",
			s.versions, migrations.EndedWell(s.versions), older))
	}
}

// takeWord removes the word of the former leader for good, and reports whether it has ended well. If so, only rows up
// to an id may have been published. This session has the lock.
func (s lockSession) takeWord(ctx context.Context, conn *pgconn.PgConn) (well bool, older int64, err error) {
	if !s.shard.Whole() {
		return false, 0, nil
	}
	rows, err := slot.Query(ctx, conn, "BEGIN; SET LOCAL synchronous_commit = local; UPDATE "+s.versions+
		" SET ended_well = NULL FROM (SELECT ended_well, older FROM "+s.versions+") former"+
		" WHERE former.ended_well = "+migrations.EndedWell(s.versions)+" RETURNING former.older; COMMIT")
	if pgcode.Is(err, pgerrcode.UndefinedColumn) {
		return false, 0, nil // an earlier build has created the table
	}
	if err == nil && len(rows) > 0 {
		older, err = strconv.ParseInt(rows[0][0], 10, 64)
		well = err == nil
	}
	return well, older, err
}

// locker returns the session that has the lock or one that conflicts with it, or that of a relay of an earlier build:
// it takes no lock, and its sessions have another name.
func (s lockSession) locker(ctx context.Context) (p slot.Process, err error) {
	conflicts := "'ShareUpdateExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'"
	advisory := "false"
	if s.shard.Whole() {
		conflicts += ", 'ShareLock'"
	} else {
		advisory = "l.locktype = 'advisory' AND (l.classid::int8 << 32) + l.objid::int8 = " + s.key()
	}
	rows, err := s.query(ctx, `
SELECT pg_catalog.jsonb_build_object('pid', l.pid, 'application', a.application_name, 'since', a.backend_start,
  'client', pg_catalog.host(a.client_addr) || coalesce(':' || nullif(a.client_port, -1)::text, ''))
FROM (SELECT pid FROM pg_locks l
      WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (l.relation = pg_catalog.to_regclass(`+outbox.QuoteLiteral(s.versions)+`) AND l.mode IN (`+conflicts+`)
          OR `+advisory+`)
      UNION ALL
      SELECT pid FROM pg_stat_activity
      WHERE datname = current_database() AND usename = current_user AND application_name = 'cdc-relay') l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.pid IS NOT NULL LIMIT 1`)
	if err == nil && len(rows) > 0 {
		err = json.Unmarshal([]byte(rows[0][0]), &p)
	}
	return p, err
}

// setName tells other relays the state of this one, as its application_name.
func (s lockSession) setName(ctx context.Context, name string) error {
	_, err := s.query(ctx, "SET application_name = "+outbox.QuoteLiteral(name))
	return err
}

// readyName is the name of a standby that can publish.
func readyName(slotName string) string {
	const longest = 63 // bytes; the server cuts longer names
	name := "cdc-relay ready for " + slotName
	return name[:min(len(name), longest)]
}

// standbyIsReady reports whether another relay waits for the lock that can publish. It ignores one that has been silent
// for five seconds, if the role may see that. Clearing the snapshot shows sessions that have come in this transaction.
func (s lockSession) standbyIsReady(ctx context.Context, slotName string) bool {
	rows, err := s.query(ctx, `
SELECT pg_stat_clear_snapshot();
SELECT FROM pg_stat_activity WHERE application_name = `+outbox.QuoteLiteral(readyName(slotName))+`
  AND datname = current_database() AND pid <> pg_backend_pid()
  AND coalesce(state_change > clock_timestamp() - interval '5 s', true) LIMIT 1`)
	return err == nil && len(rows) > 1
}

// ping proves that the session has the lock, and returns the server's time.
func (s lockSession) ping(ctx context.Context) (at time.Time, err error) {
	rows, err := s.query(ctx, "SELECT pg_catalog.to_jsonb(clock_timestamp()) #>> '{}'")
	if err == nil {
		at, err = time.Parse(time.RFC3339Nano, strings.TrimSpace(rows[0][0]))
	}
	return at, err
}
