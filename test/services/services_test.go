package services

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// Fails in place of all tests, here and in other packages, that were skipped because there is no server: go test hides
// the messages of skipped tests.
func TestServersAreAvailable(t *testing.T) {
	_, postgres := sharedPostgres()
	_, rabbitmq := sharedRabbitMQ()
	if err := errors.Join(postgres, rabbitmq); errors.Is(err, errUnavailable) && (!serversNamed() || os.Getenv(EnvWay) == string(Containers)) {
		t.Fatal("Postgres and RabbitMQ are missing here: every test that needs them was skipped, in all packages. " +
			"./scripts/test says how to install them, and runs everything (CONTRIBUTING.md)")
	}
}

func TestABrokenServerIsNotSkipped(t *testing.T) {
	t.Setenv(EnvWay, "")
	t.Setenv(EnvState, "")
	t.Setenv(EnvPostgresBin, "")
	t.Setenv(EnvDatabase, "postgres://user:secret@%zz")
	_, err := StartPostgres(t.Context(), Options{})
	if err == nil || errors.Is(err, errUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v: expected one about the address, without its password", err)
	}
}

// Otherwise a failed test would pass.
func TestRunReturnsTheExitCode(t *testing.T) {
	t.Setenv(EnvWay, string(Environment))
	t.Setenv(EnvDatabase, SharedPostgres(t).URL(""))
	t.Setenv(EnvAMQP, SharedRabbitMQ(t).URL(""))
	for command, want := range map[string]int{"exit 0": 0, "exit 3": 3, "kill -9 $$": 137} {
		if code, err := Run(context.Background(), Options{}, "sh", "-c", command); code != want || err != nil {
			t.Errorf("%s: exit code %d, %v: expected %d", command, code, err, want)
		}
	}
}

func TestPostgresConnectionsAreClassified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sent, kind string
		known      bool
	}{
		{"\x00\x00\x00\x08\x04\xd2\x16\x2f", "", false}, // SSLRequest
		{"\x00\x00\x00\x29\x00\x03\x00\x00user\x00me\x00replication\x00database\x00\x00", Replication, true},
		{"\x00\x00\x00\x29\x00\x03\x00\x00replication\x00database\x00user\x00me\x00\x00", Replication, true},
		{"\x00\x00\x00\x13\x00\x03\x00\x00user\x00replication\x00\x00", Ordinary, true},
		{"\x16\x03\x01\x02", Ordinary, true}, // TLS
	} {
		if kind, known := PostgresKinds([]byte(c.sent)); kind != c.kind || known != c.known {
			t.Errorf("%q: %q, %t", c.sent, kind, known)
		}
	}
}

// Delayed bytes arrive in order, and so does the end of the connection: nothing in flight is lost.
func TestADelayingProxyLosesNothing(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	Must(t, err)
	defer listener.Close()
	p := NewProxy(t, listener.Addr().String())
	conn, err := net.Dial("tcp", p.Addr())
	Must(t, err)
	defer conn.Close()
	server, err := listener.Accept()
	Must(t, err)
	const late = 300 * time.Millisecond
	p.Delay(late, Downstream)
	sent := time.Now()
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(server, word); err != nil {
			t.Fatal(err)
		}
	}
	_ = server.Close()
	if _, err := io.WriteString(conn, "nobody reads this"); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if took := time.Since(sent); string(got) != "onetwo" || err != nil || took < late {
		t.Errorf("after %s: %q, %v", took, got, err)
	}
}
