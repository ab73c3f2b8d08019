package doctor_test

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/replication"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/certs"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestAWrongClockIsReported(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	for off, words := range map[time.Duration]string{3 * time.Minute: "3m behind this machine's", -2 * time.Hour: "2h0m ahead of this machine's"} {
		p.SetClock(func() time.Time { return time.Now().Add(off) })
		p.examine().want(doctor.Warning, doctor.Postgres, "clock", words, "Messages are due by the clock of Postgres", "timedatectl")
	}
}

func TestAPoolerIsReported(t *testing.T) {
	t.Parallel()
	p := healthy(t, services.SharedPostgres(t))
	p.as(services.PgBouncer(t, p.URL, "pool_mode = transaction"))
	r := p.examine()
	r.want(doctor.Problem, doctor.Postgres, "pooler", "PgBouncer", "default_transaction_read_only", "--database-url")
	r.want(doctor.Problem, doctor.Postgres, "replication", "the pooler rejects replication connections")
	r.wantOthersOK("pooler", "replication")
	p.examine().wantOthersOK("pooler", "replication") // on the same server process, with the state of the first session

	p.as(services.PgBouncer(t, p.URL, "pool_mode = transaction\nignore_startup_parameters = default_transaction_read_only"))
	r = p.examine()
	r.want(doctor.Problem, doctor.Postgres, "pooler", "the startup named Postgres process")
	// Version 1.23 and later pass replication connections on, but not with a parameter that they do not know.
	r.want(doctor.Problem, doctor.Postgres, "replication", "the pooler rejects replication connections")
}

// Without its startup parameters, check would open a connection that the relay cannot open. The others are read-only.
func TestReplicationIsTriedAsTheRelayConnects(t *testing.T) {
	p := healthy(t, services.SharedPostgres(t))
	inner := p.Connect
	rejects := ""
	p.Connect = func(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
		if _, there := parameters[rejects]; there && parameters["replication"] != "" {
			return nil, &pgconn.PgError{Severity: "FATAL", Code: pgerrcode.ProtocolViolation, Message: "unsupported startup parameter: " + rejects} // as PgBouncer 1.23 answers
		}
		if len(parameters) > 0 && parameters["replication"] == "" && parameters["default_transaction_read_only"] != "on" {
			t.Errorf("a session can write: %v", parameters)
		}
		return inner(ctx, parameters)
	}
	for rejects = range replication.Parameters() {
		p.examine().want(doctor.Problem, doctor.Postgres, "replication", "unsupported startup parameter: "+rejects)
	}
	rejects = ""
	p.examine().wantOthersOK()
}

func throughPort(t *testing.T, address, hostport string) string {
	t.Helper()
	u := parsed(t, address)
	u.Host = hostport
	return strings.TrimSpace(u.String())
}

func TestAManagedServiceIsNamed(t *testing.T) {
	t.Parallel()
	services.Thorough(t, "starts its own server")
	p := healthyTables(t, services.PrivatePostgres(t, "wal_level=replica"))
	p.exec("CREATE ROLE rds_superuser", "CREATE ROLE rds_replication")
	p.relayRole("")
	r := p.examine()
	r.want(doctor.OK, doctor.Postgres, "reachable", "Amazon RDS")
	r.want(doctor.Problem, doctor.Postgres, "wal_level", "wal_level is replica", "rds.logical_replication")
	r.want(doctor.Problem, doctor.Postgres, "replication", "GRANT rds_replication TO")
	p.exec("GRANT rds_replication TO " + p.relayRole(""))
	// No role can replicate here, so the connection fails; the check first relied on the catalog.
	p.examine().want(doctor.Problem, doctor.Postgres, "replication", "GRANT rds_replication TO")
}

// healthyTables is for a server without logical replication.
func healthyTables(t *testing.T, server *services.Postgres) *patient {
	t.Helper()
	p := onDatabase(t, server.Database(t))
	p.Poll = true
	p.setup()
	p.Poll = false
	return p
}

func TestABrokerWithTLSIsExamined(t *testing.T) {
	t.Parallel()
	authority := certs.NewAuthority(t)
	authority.Issue("mq.example")
	ca, file, key := authority.File("ca.pem"), authority.File("mq.example.pem"), authority.File("mq.example.key")
	var ports [2]string
	for i := range ports {
		port, err := services.FreePort()
		must(t, err)
		ports[i] = strconv.Itoa(port)
	}
	broker, err := services.StartRabbitMQ(t.Context(), services.Options{
		Way: services.Local, Private: true, // a container could not read the files
		Settings: []string{
			"listeners.ssl.1 = 127.0.0.1:" + ports[0], "ssl_options.certfile = " + file, "ssl_options.keyfile = " + key,
			"management.ssl.port = " + ports[1], "management.ssl.certfile = " + file, "management.ssl.keyfile = " + key,
		},
	})
	services.Need(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Hang())
		defer cancel()
		if err := broker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	p := healthy(t, services.SharedPostgres(t))
	p.ManagementURL = "https://127.0.0.1:" + ports[1]
	at := func(query url.Values) {
		u := url.URL{Scheme: "amqps", User: url.UserPassword("guest", "guest"), Host: "127.0.0.1:" + ports[0], Path: "/", RawQuery: query.Encode()}
		p.RabbitMQ.Value = u.String()
	}
	at(nil)
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "reachable", "server_name_indication=")
	at(url.Values{"server_name_indication": {"mq.example"}})
	p.examine().want(doctor.Problem, doctor.RabbitMQ, "reachable", "unknown authority", "?cacertfile=")
	at(url.Values{"cacertfile": {ca}, "server_name_indication": {"mq.example"}})
	r := p.examine()
	r.want(doctor.Warning, doctor.RabbitMQ, "tls", "TLS 1.3 to RabbitMQ at 127.0.0.1:"+ports[0]+", certificate of mq.example", "m more", "renew")
	r.want(doctor.OK, doctor.RabbitMQ, "management", "https://")
	r.wantOthersOK("tls")
}

// The examination ends even if servers accept connections and never answer.
func TestSilentServersDoNotBlockTheExamination(t *testing.T) {
	t.Parallel()
	p := healthy(t, services.SharedPostgres(t)).withBroker(services.SharedRabbitMQ(t))
	proxied := func(address string) (string, *services.Proxy) {
		proxy := services.NewProxy(t, parsed(t, address).Host)
		return throughPort(t, address, proxy.Addr()), proxy
	}
	database, silentDatabase := proxied(p.URL)
	broker, silentBroker := proxied(p.RabbitMQ.Value)
	api, silentAPI := proxied(p.ManagementURL)
	p.as(database)
	p.RabbitMQ.Value, p.ManagementURL = broker, api
	p.examine().wantOthersOK()

	p.SetTimeout(2 * time.Second)
	silentAPI.BlackHole(services.Downstream)
	p.insert("amq.topic", "k")
	p.examine().want(doctor.Warning, doctor.RabbitMQ, "management", "rabbitmq-plugins enable")
	silentDatabase.BlackHole(services.Downstream)
	silentBroker.BlackHole(services.Downstream)
	r := p.examine()
	r.want(doctor.Problem, doctor.Postgres, "reachable")
	r.want(doctor.Problem, doctor.RabbitMQ, "reachable")
}
