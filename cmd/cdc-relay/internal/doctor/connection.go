package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

// encryption is how a connection to a server is protected.
type encryption struct {
	tls      *tls.ConnectionState // nil: it is not encrypted
	local    bool                 // it does not leave this machine
	verified bool                 // the server proved its name
}

func encryptionOf(conn net.Conn, verified bool) encryption {
	e := encryption{verified: verified}
	switch address := conn.RemoteAddr().(type) {
	case *net.UnixAddr:
		e.local = true
	case *net.TCPAddr:
		e.local = address.IP.IsLoopback()
	}
	if encrypted, is := conn.(*tls.Conn); is {
		state := encrypted.ConnectionState()
		e.tls = &state
	}
	return e
}

// soonExpired is how long before the expiry of a certificate check warns.
const soonExpired = 30 * 24 * time.Hour

// judge checks a connection to a server. Choose says how TLS is chosen.
func (e encryption) judge(c chart, server string, choose steps, now time.Time) {
	switch {
	case e.tls == nil && e.local:
		c.ok("tls", "none; the connection does not leave this machine")
		return
	case e.tls == nil:
		c.warn("tls", choose, "none to %s: password and messages cross the network in clear", server)
		return
	case len(e.tls.PeerCertificates) == 0 || !e.verified:
		c.ok("tls", "%s to %s, and the certificate is not verified", tls.VersionName(e.tls.Version), server)
		return
	}
	cert := e.tls.PeerCertificates[0]
	says := fmt.Sprintf("%s to %s, certificate of %s, valid until %s",
		tls.VersionName(e.tls.Version), server, cert.Subject.CommonName, cert.NotAfter.Format(time.DateOnly))
	if left := cert.NotAfter.Sub(now); left < soonExpired {
		c.warn("tls", remark("# renew the certificate of %s", server), "%s: for %s more", says, span(max(left, 0)))
	} else {
		c.ok("tls", "%s", says)
	}
}

// command runs a command on a new connection, and returns the first value of its answer.
func (o Options) command(ctx context.Context, parameters map[string]string, text string) (value string, err error) {
	conn, err := o.Connect(ctx, parameters)
	if err != nil {
		return "", err
	}
	s := &session{conn: conn}
	defer s.close(ctx)
	results, err := conn.PgConn().Exec(ctx, text).ReadAll()
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 {
		value = string(results[0].Rows[0][0])
	}
	return value, err
}

// poolerOf recognises a pooler. A pooler answers the startup itself: the process id that it returns for cancel requests
// is not that of the server process, and it rejects startup parameters that it cannot keep.
func poolerOf(s *session, server answer[serverFacts]) string {
	told := int64(s.conn.PgConn().PID())
	switch {
	case s.pooled:
		return "it rejects the startup parameter default_transaction_read_only"
	case server.err == nil && server.value.BackendPID != told:
		return fmt.Sprintf("the startup named Postgres process %d, but it is %d", told, server.value.BackendPID)
	}
	return ""
}

func (j *databaseJudge) judgePooler(c chart) {
	const says = "the connection goes through a pooler such as PgBouncer (%s): "
	switch {
	case j.f.pooler == "":
		c.ok("pooler", "none seen: the connection goes to Postgres itself")
	case !j.o.Poll && j.f.replication != nil:
		c.wrong("pooler", j.directly(), says+"the relay cannot stream through it", j.f.pooler)
	default:
		c.warn("pooler", j.directly(),
			says+"the relay rejects one that shares server processes between transactions", j.f.pooler)
	}
}

// directly says how to connect without the pooler.
func (j *databaseJudge) directly() steps {
	how := "use host and port of Postgres itself, 5432 as a rule, not of the pooler"
	switch j.service.role {
	case "supabase_admin":
		how = "name the direct connection: db.PROJECT.supabase.co:5432, not the pooler"
	case "neon_superuser":
		how = "name the host without -pooler"
	}
	return remark("# in --database-url (CDC_RELAY_DATABASE_URL), %s", how)
}

// askClock compares the clocks. A difference shorter than the round trip does not count.
func (s *session) askClock(ctx context.Context, now func() time.Time) (a answer[time.Duration]) {
	before := now()
	theirs := ask[float64](ctx, s, "SELECT to_jsonb(extract(epoch FROM clock_timestamp())::float8)")
	switch after, at := now(), time.UnixMicro(int64(theirs.value*1e6)); {
	case theirs.err != nil:
		a.err = theirs.err
	case at.Before(before):
		a.value = at.Sub(before)
	default:
		a.value = max(at.Sub(after), 0)
	}
	return a
}

// A difference that people notice in displayed times. Due times use only Postgres' clock.
const wrongClock = 5 * time.Second

func (j *databaseJudge) judgeClock(c chart) {
	ahead, way := j.f.clock.value, "ahead of"
	if ahead < 0 {
		way = "behind"
	}
	switch failed := c.unknown("clock", j.f.clock.err); {
	case failed:
	case ahead.Abs() >= wrongClock:
		c.warn("clock", command("timedatectl set-ntp true").noted("here, and on the server"),
			"the clock of Postgres is %s %s this machine's. "+
				"Messages are due by the clock of Postgres, so only log times and latencies are wrong",
			span(ahead.Abs()), way)
	default:
		c.ok("clock", "Postgres and this machine agree")
	}
}
