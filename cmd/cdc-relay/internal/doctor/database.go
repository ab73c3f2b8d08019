package doctor

import (
	"context"
	"errors"
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

// This file lists the subjects of the database. A new one needs a file with its query, its facts and its judge, and
// here a field, a question and a call of the judge.

// databaseFacts are the answers to the questions about the database.
type databaseFacts struct {
	unreachable error // if set, nothing else is known
	address     string
	encryption  encryption
	pooler      string                // how a pooler was recognised; "": there is none
	readOnly    answer[string]        // default_transaction_read_only in a session that does not set it
	clock       answer[time.Duration] // how far Postgres' clock is ahead of ours; 0: not more than the round trip
	replication error                 // why no replication connection could be opened; nil: it could. Not with Poll

	server       answer[serverFacts]
	role         answer[roleFacts]
	tables       answer[tablesFacts]
	version      answer[migrations.State]
	apps         []answer[appFacts] // one for each of AppRoles
	grants       answer[[]grantFacts]
	adopted      answer[[]adopt.Adopted]
	publication  answer[publicationFacts]
	slots        answer[slotsFacts]
	transactions answer[transactionFacts]
	rows         []row // of checks.sql
	history      answer[historyFacts]
	sample       answer[sample]
	relays       Relays
	identity     *problem.Problem // why the server rejects the deletes or updates of the relay; nil: it does not
}

// gatherDatabase collects the facts of the database, each with its own question.
func (o Options) gatherDatabase(ctx context.Context) (f databaseFacts) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	s, err := openSession(ctx, o.Connect)
	if err != nil {
		f.unreachable = err
		return f
	}
	defer s.close(ctx)
	s.tables = []outbox.Table{o.Table, o.Table.DeadLetter(), o.Table.Published(), migrations.RelayTable(o.Table)}
	socket, config := s.conn.PgConn().Conn(), s.conn.Config().TLSConfig
	f.address = socket.RemoteAddr().String()
	// With sslmode=verify-ca, the driver's own function checks the certificate.
	verified := config != nil && (!config.InsecureSkipVerify || config.VerifyPeerCertificate != nil)
	f.encryption = encryptionOf(socket, verified)
	f.server = ask[serverFacts](ctx, s, serverSQL, managedRoles())
	f.pooler = poolerOf(s, f.server)
	f.clock = s.askClock(ctx, o.now)
	f.role = ask[roleFacts](ctx, s, roleSQL, o.Administrator)
	f.tables = ask[tablesFacts](ctx, s, tablesSQL, o.Table.Schema, o.tableNames(), o.Table.Name)
	f.version = read(ctx, s, func(tx pgx.Tx) (migrations.State, error) {
		return migrations.Status(ctx, tx, o.Table, o.TableOwner)
	})
	for _, role := range o.AppRoles {
		f.apps = append(f.apps, o.askApp(ctx, s, role))
	}
	f.transactions = ask[transactionFacts](ctx, s, transactionsSQL)
	if !o.Poll {
		f.publication = ask[publicationFacts](ctx, s, publicationSQL(), o.Publication, o.Table.Schema, o.Table.Name)
		f.slots = askSlots(ctx, s)
		_, f.replication = o.command(ctx, replication.Parameters(), "IDENTIFY_SYSTEM")
	}
	// The session of the other questions sets it.
	f.readOnly.value, f.readOnly.err = o.command(ctx, nil, "SHOW default_transaction_read_only")
	if o.KeepPublished > 0 {
		f.history = o.askHistory(ctx, s)
	}
	f.rows = newDatabaseJudge(o, f).askChecks(ctx, s)
	if o.Relays != nil {
		f.relays = read(ctx, s, func(tx pgx.Tx) (Relays, error) { return o.Relays(ctx, tx), nil }).value
	}
	if t, there := f.tables.value.Tables[o.Table.Name]; there {
		o.gatherRows(ctx, s, &f, t.partitioned())
	}
	return f
}

// gatherRows asks about the rows of the outbox, which exists.
func (o Options) gatherRows(ctx context.Context, s *session, f *databaseFacts, partitioned bool) {
	f.grants = o.askGrants(ctx, s)
	f.sample = o.takeSample(ctx, s, partitioned)
	f.adopted = read(ctx, s, func(tx pgx.Tx) ([]adopt.Adopted, error) {
		return adopt.List(ctx, tx, o.Table, o.TableOwner)
	})
	if !errors.Is(f.version.err, migrations.ErrOwner) {
		f.identity = o.askIdentity(ctx, s)
	}
}

// databaseJudge turns the facts of the database into findings. It holds what the judges share.
type databaseJudge struct {
	o       Options
	f       databaseFacts
	server  serverFacts
	service Service
	role    roleFacts
	tables  tablesFacts
	// table is the outbox, if it is there.
	table tableFacts
	there bool
	// absent: nothing has its name. Setup creates all that is missing then, so it is the only finding about that.
	absent bool
	slots  []slot.Slot
	slot   slot.Slot // of this relay
}

func newDatabaseJudge(o Options, f databaseFacts) *databaseJudge {
	j := &databaseJudge{
		o: o, f: f, server: f.server.value, service: service(f.server.value.Roles), role: f.role.value,
		tables: f.tables.value, slots: f.slots.value.Slots,
	}
	j.table, j.there = j.tables.Tables[o.Table.Name]
	_, other := j.tables.Others[o.Table.Name]
	j.absent = f.tables.err == nil && !j.there && !other
	for _, s := range j.slots {
		if s.Name == o.Slot {
			j.slot = s
		}
	}
	return j
}

func judgeDatabase(o Options, f databaseFacts) (found []Finding) {
	c := chart{Postgres, "", &found}
	if f.unreachable != nil {
		c.wrong("reachable", fixOf(f.unreachable), "%s", f.unreachable)
		return found
	}
	if c.unknown("reachable", f.server.err) {
		return found
	}
	j := newDatabaseJudge(o, f)
	j.judgeServer(c)
	j.judgeTables(c.in(Tables))
	j.judgeGrants(c.in(Grants))
	if !o.Poll {
		j.judgePublication(c.in(Publication))
		j.judgeSlot(c.in(Slot))
	}
	j.judgeCleanup(c.in(Cleanup))
	return found
}

// judgeServer checks the server, the connection to it, and what streaming needs.
func (j *databaseJudge) judgeServer(c chart) {
	j.judgeVersion(c)
	j.f.encryption.judge(c, "Postgres at "+j.f.address, remark("# in --database-url (CDC_RELAY_DATABASE_URL): "+
		"sslmode=verify-full, and sslrootcert=FILE for an authority of your own"), time.Now())
	j.judgeClock(c)
	j.judgePooler(c)
	j.judgeRows(c)
	if !j.o.Poll {
		j.judgeReplication(c)
	}
}

// judgeTables checks the tables, and then what is in them.
func (j *databaseJudge) judgeTables(c chart) {
	if c.unknown("table", j.f.tables.err) {
		return
	}
	for _, need := range schema.Needs(j.o.Table) {
		j.judgeTable(c.about(need.Table.String()), need)
	}
	j.judgeHistory(c.about(j.o.Table.Published().String()))
	j.judgeRows(c)
	j.judgeAdopted(c)
	j.judgeMigrations(c)
	j.judgeReports(c)
	if found := j.f.identity; found != nil {
		c.wrong("replica_identity", hintFix(found.Fix), "%s", found.What)
	}
}

// judgeCleanup checks what keeps dead rows of the outbox from being removed.
func (j *databaseJudge) judgeCleanup(c chart) {
	j.judgeTransactions(c)
	j.judgePrepared(c)
	j.judgeStandbyHorizon(c)
	j.judgeRows(c)
}

// grantee is the relay's role, as SQL writes it.
func (j *databaseJudge) grantee() string { return quote(j.role.Name) }
