package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/publish/amqp"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/publishtest"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// server is one of the two that a relay logs in to, behind a proxy that can cut the connections.
type server struct {
	t     *testing.T
	url   url.URL
	proxy *services.Proxy
	user  string
	file  string
}

func newServer(t *testing.T, address, user string) *server {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	s := &server{
		t: t, url: *u, proxy: services.NewProxy(t, u.Host), user: user, file: filepath.Join(t.TempDir(), "url"),
	}
	s.url.Host = s.proxy.Addr()
	return s
}

// put writes an address with this password into the file, as agents do: by a rename.
func (s *server) put(password string) {
	s.t.Helper()
	s.url.User = url.UserPassword(s.user, password)
	s.write(s.file+".new", s.url.String()+"\n")
	must(s.t, os.Rename(s.file+".new", s.file))
}

func (s *server) write(file, text string) {
	s.t.Helper()
	must(s.t, os.WriteFile(file, []byte(text), 0o600))
}

// Both servers get new passwords, and then the connections are cut: the leader and a standby wait for the files, also
// while somebody writes them, and use what they contain then.
func TestPasswordsChangeWhileRelaysRun(t *testing.T) {
	i := newInstance(t)
	broker, user := services.SharedRabbitMQ(t), services.Name(t)
	vhost, err := url.Parse(i.amqp)
	must(t, err)
	brokerPassword := func(password string) {
		t.Helper()
		must(t, broker.AddUser(t.Context(), user, password))
	}
	i.exec("CREATE ROLE " + user + " SUPERUSER LOGIN PASSWORD 'first'")
	t.Cleanup(func() { _, _ = i.db.Exec(context.Background(), "DROP ROLE "+user) })
	brokerPassword("first")
	name := strings.TrimPrefix(vhost.Path, "/")
	must(t, broker.Permit(t.Context(), name, user, services.AllPermissions()))
	postgres, rabbitmq := newServer(t, i.config.DatabaseURL, user), newServer(t, i.amqp, user)
	i.config.DatabaseURL, i.config.DatabaseURLFile = "", postgres.file
	postgres.put("first")
	rabbitmq.put("first")

	var relays []*Relay
	for range 2 {
		publisher, err := amqp.New(amqp.Config{URLFile: rabbitmq.file, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		r, stop := i.startWith(publisher, prometheus.NewRegistry())
		defer stop()
		relays = append(relays, r)
	}
	ready := func(want bool) func() bool {
		return func() bool { return relays[0].Health().Ready == want && relays[1].Health().Ready == want }
	}
	i.await("both relays are ready", ready(true))

	i.exec("ALTER ROLE " + user + " PASSWORD 'second'")
	brokerPassword("second")
	for _, s := range []*server{postgres, rabbitmq} {
		s.proxy.Cut()
	}
	for _, r := range relays {
		i.await("a relay names both files", func() bool {
			all := fmt.Sprint(r.Health().Parts)
			return !r.Health().Ready && strings.Contains(all, postgres.file+", written 20") && strings.Contains(all, rabbitmq.file+", written 20")
		})
	}
	i.load(20)
	postgres.write(postgres.file, "")
	rabbitmq.write(rabbitmq.file, rabbitmq.url.Scheme+"://"+user+":sec")
	i.await("a relay names the empty file", func() bool {
		return strings.Contains(fmt.Sprint(relays[0].Health().Parts), postgres.file+": is empty")
	})
	postgres.put("second")
	rabbitmq.put("second")
	i.await("both relays are ready again", ready(true))
	i.await("all arrive", func() bool { return i.arrived() == 20 && i.rowsLeft() == 0 })
}

// A vault has put another role into the file, and revokes the first one.
func TestSessionsOfARevokedRoleAreReplacedAtOnce(t *testing.T) {
	for _, revoke := range []string{"ALTER ROLE %s NOSUPERUSER", "REASSIGN OWNED BY %s TO CURRENT_USER; DROP ROLE %s"} {
		t.Run(revoke, func(t *testing.T) {
			t.Parallel()
			surviveRevocation(t, revoke)
		})
	}
}

func surviveRevocation(t *testing.T, revoke string) {
	i := newInstance(t)
	former, next := services.Name(t), services.Name(t)
	for _, role := range []string{former, next} {
		i.exec("CREATE ROLE " + role + " SUPERUSER LOGIN PASSWORD 'p'")
		t.Cleanup(func() { _, _ = i.db.Exec(context.Background(), "DROP ROLE IF EXISTS "+role) })
	}
	postgres := newServer(t, i.config.DatabaseURL, former)
	i.config.DatabaseURL, i.config.DatabaseURLFile = "", postgres.file
	postgres.put("p")
	r, stop := i.startWith(i.publisher(), prometheus.NewRegistry())
	defer stop()
	i.await("the relay is ready", func() bool { return r.Health().Ready })
	i.load(20)
	i.await("all arrive", func() bool { return i.arrived() == 20 && i.rowsLeft() == 0 })
	postgres.user = next
	postgres.put("p")
	for statement := range strings.SplitSeq(revoke, "; ") {
		i.exec(fmt.Sprintf(statement, former))
	}
	i.load(20)
	i.await("these arrive, too", func() bool { return i.arrived() == 40 && i.rowsLeft() == 0 })
}

// At the start a wrong password is a mistake of the configuration. It names the file.
func TestARejectedPasswordAtTheStartNamesItsFile(t *testing.T) {
	i := newInstance(t)
	postgres := newServer(t, i.config.DatabaseURL, services.Name(t))
	postgres.put("wrong")
	passwords := filepath.Join(t.TempDir(), "pgpass")
	postgres.write(passwords, "*:*:*:*:wrong\n")
	t.Setenv("PGPASSFILE", passwords)
	postgres.url.User = url.User(postgres.user)
	for _, file := range []string{postgres.file, passwords} {
		i.config.DatabaseURL, i.config.DatabaseURLFile = postgres.url.String(), ""
		if file == postgres.file {
			i.config.DatabaseURL, i.config.DatabaseURLFile = "", file
		}
		var log publishtest.Buffer
		r := i.new(i.publisher(), slog.NewTextHandler(&log, nil), prometheus.NewRegistry())
		ctx, cancel := context.WithTimeout(t.Context(), await.Hang())
		err := r.Run(ctx)
		cancel()
		if !problem.Is(err) || !strings.Contains(err.Error(), "the password is that of "+file+", written 20") {
			t.Errorf("%s: %v", file, err)
		}
		if text := strings.Join(log.Lines(), "\n") + err.Error(); strings.Contains(text, "wrong@") {
			t.Errorf("the password is in %s", text)
		}
	}
}
