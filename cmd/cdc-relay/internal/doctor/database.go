package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/adopt"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/schema"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
	"github.com/cdc-relay/cdc-relay/replication"
)

// gatherDatabase collects the facts of the database, each with its own question.
func (o Options) gatherDatabase(ctx context.Context) databaseFacts {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	var f databaseFacts
	s, err := openSession(ctx, o.Connect)
	if err != nil {
		f.unreachable = err
		return f
	}
	defer s.close(ctx)
	socket, config := s.conn.PgConn().Conn(), s.conn.Config().TLSConfig
	f.address = socket.RemoteAddr().String()
	// With sslmode=verify-ca, the driver's own function checks the certificate.
	verified := config != nil && (!config.InsecureSkipVerify || config.VerifyPeerCertificate != nil)
	f.encryption = encryptionOf(socket, verified)

	f.server.err = s.fetch(ctx, &f.server.value, serverSQL, settingNames(), managedRoles())
	f.pooler = poolerOf(s, f.server)
	f.clock = s.askClock(ctx, o.now)
	f.role.err = s.fetch(ctx, &f.role.value, roleSQL, o.Administrator)
	f.tables.err = s.fetch(ctx, &f.tables.value, tablesSQL, o.Table.Schema, o.tableNames(), o.Table.Name)
	f.version.err = s.read(ctx, func(tx pgx.Tx) (err error) {
		f.version.value, err = migrations.Status(ctx, tx, o.Table, o.TableOwner)
		return err
	})
	for _, role := range o.AppRoles {
		f.apps = append(f.apps, o.gatherApp(ctx, s, role))
	}
	f.transactions.err = s.fetch(ctx, &f.transactions.value, transactionsSQL)
	if !o.Poll {
		f.publication.err = s.fetch(ctx, &f.publication.value, publicationSQL(), o.Publication, o.Table.Schema,
			o.Table.Name)
		if errors.Is(f.publication.err, pgx.ErrNoRows) {
			f.publication.err = nil
		}
		f.slots.err = s.read(ctx, func(tx pgx.Tx) (err error) {
			f.slots.value.Slots, err = slot.List(ctx, tx.Conn().PgConn())
			return err
		})
		if f.slots.err == nil {
			f.slots.err = s.fetch(ctx, &f.slots.value.Standbys, standbysSQL)
		}
		_, f.replication = o.ask(ctx, replication.Parameters(), "IDENTIFY_SYSTEM")
	}
	// The session of the other questions sets it.
	f.readOnly.value, f.readOnly.err = o.ask(ctx, nil, "SHOW default_transaction_read_only")
	if o.KeepPublished > 0 {
		f.history = o.gatherHistory(ctx, s)
	}
	if t, there := f.tables.value.Tables[o.Table.Name]; there {
		o.gatherRows(ctx, s, &f, t.partitioned())
	}
	return f
}

// gatherApp asks what a role of an application may do.
func (o Options) gatherApp(ctx context.Context, s *session, role string) (a answer[appFacts]) {
	a.err = s.fetch(ctx, &a.value, appSQL, role, o.Table.Schema, o.Table.Name)
	if errors.Is(a.err, pgx.ErrNoRows) {
		a.err = nil
	}
	a.value.Name = role
	return a
}

// gatherGrants asks which roles may do something with the outbox.
func (o Options) gatherGrants(ctx context.Context, s *session) (a answer[[]grantFacts]) {
	apps := append([]string{}, o.AppRoles...)
	a.err = s.fetch(ctx, &a.value, grantsSQL, o.Table.Schema, o.Table.Name, o.Table.DeadLetter().Name, apps)
	return a
}

// gatherRows asks about the rows of the outbox, which exists.
func (o Options) gatherRows(ctx context.Context, s *session, f *databaseFacts, partitioned bool) {
	if sequence := f.tables.value.Sequence; sequence != (outbox.Table{}) {
		ids := strings.NewReplacer("%TABLE%", o.Table.SQL(), "%SEQUENCE%", sequence.SQL())
		f.ids.err = s.fetch(ctx, &f.ids.value, ids.Replace(idsSQL))
	}
	f.grants = o.gatherGrants(ctx, s)
	f.dead.err = s.fetch(ctx, &f.dead.value, deadSQL, o.Table.SQL())
	times := strings.NewReplacer("%TABLE%", o.Table.SQL(), "%VERSION%", fmt.Sprint(outbox.SchemaVersion))
	f.times.err = s.fetch(ctx, &f.times.value, times.Replace(timesSQL))
	f.sample = s.takeSample(ctx, o.Table, partitioned)
	f.adopted.err = s.read(ctx, func(tx pgx.Tx) (err error) {
		f.adopted.value, err = adopt.List(ctx, tx.Conn(), o.Table)
		return err
	})
	if !errors.Is(f.version.err, migrations.ErrOwner) {
		f.identity = o.gatherIdentity(ctx, s)
	}
	f.textual.err = s.fetch(ctx, &f.textual.value, strings.ReplaceAll(textualSQL, "%TABLE%", o.Table.SQL()))
}

// gatherIdentity asks the server whether it would reject the deletes and updates of the relay. EXPLAIN runs nothing.
func (o Options) gatherIdentity(ctx context.Context, s *session) (found *problem.Problem) {
	err := s.read(ctx, func(tx pgx.Tx) error {
		const both = "EXPLAIN DELETE FROM %[1]s WHERE id = 0; EXPLAIN UPDATE %[1]s SET attempts = attempts WHERE id = 0"
		_, err := tx.Exec(ctx, fmt.Sprintf(both, o.Table.SQL()), pgx.QueryExecModeSimpleProtocol)
		return err
	})
	_ = s.read(ctx, func(tx pgx.Tx) error { // if it fails, the names of the publications are missing
		found = schema.ExplainIdentity(ctx, tx, o.Table, err)
		return nil
	})
	return found
}

// tableNames are the tables of the outbox.
func (o Options) tableNames() []string {
	var names []string
	for _, need := range schema.Needs(o.Table) {
		names = append(names, need.Table.Name)
	}
	return append(names, migrations.VersionTable(o.Table).Name, o.Table.Published().Name)
}

// poolerOf recognises a pooler. A pooler answers the startup itself: the process id that it returns for cancel requests
// is not that of the server process, and it rejects startup parameters that it cannot keep.
func poolerOf(s *session, server answer[serverFacts]) string {
	if s.pooled {
		return "it rejects the startup parameter default_transaction_read_only"
	}
	told := int64(s.conn.PgConn().PID())
	if server.err == nil && server.value.BackendPID != told {
		return fmt.Sprintf("the startup named server process %d, but it is %d", told, server.value.BackendPID)
	}
	return ""
}

// ask runs a command on a new connection, and returns the first value of its answer.
func (o Options) ask(ctx context.Context, parameters map[string]string, command string) (value string, err error) {
	conn, err := o.Connect(ctx, parameters)
	if err != nil {
		return "", err
	}
	s := &session{conn: conn}
	defer s.close(ctx)
	results, err := conn.PgConn().Exec(ctx, command).ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) == 1 && len(results[0].Rows) == 1 {
		value = string(results[0].Rows[0][0])
	}
	return value, nil
}

// askClock compares the clocks. A difference shorter than the round trip does not count.
func (s *session) askClock(ctx context.Context, now func() time.Time) (a answer[time.Duration]) {
	var theirs float64
	before := now()
	if a.err = s.fetch(ctx, &theirs, "SELECT to_jsonb(extract(epoch FROM clock_timestamp())::float8)"); a.err != nil {
		return a
	}
	after, at := now(), time.UnixMicro(int64(theirs*1e6))
	if at.Before(before) {
		a.value = at.Sub(before)
	} else {
		a.value = max(at.Sub(after), 0)
	}
	return a
}

// settingNames are the server settings that check reads.
func settingNames() []string {
	return []string{
		"wal_level", "effective_wal_level", "max_replication_slots", "max_wal_senders", "wal_sender_timeout",
		"max_slot_wal_keep_size", "max_wal_size", "idle_replication_slot_timeout", "autovacuum", "track_counts",
	}
}
