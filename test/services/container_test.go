package services

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"
	amqp "github.com/rabbitmq/amqp091-go"
)

// containersOnly skips the test if there is no engine with the image, unless containers were requested.
func containersOnly[T any](t *testing.T, start func() (T, error)) T {
	t.Helper()
	server, err := start()
	if errors.Is(err, errUnavailable) && t.Context().Err() == nil && !wayIs(Containers) {
		t.Skipf("no containers on this machine: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func TestANamedImageIsTheOnlyOne(t *testing.T) {
	t.Setenv(EnvRabbitMQImage, "")
	if got := rabbitmqImage.names(); len(got) != 2 {
		t.Errorf("images %q", got)
	}
	t.Setenv(EnvRabbitMQImage, "rabbitmq:3.13-management")
	if got := rabbitmqImage.names(); !slices.Equal(got, []string{"rabbitmq:3.13-management"}) {
		t.Errorf("images %q", got)
	}
	if got := postgresImage.names(); len(got) != 2 {
		t.Errorf("images of Postgres %q", got)
	}
}

func TestContainerPostgresRestartsWithItsDataAndPort(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := containersOnly(t, func() (*Postgres, error) {
		return StartPostgres(ctx, Options{Way: Containers, Private: true, Settings: []string{"work_mem=5MB"}})
	})
	closeAfter(t, server.Close)
	if err := server.Exec(ctx, "", "CREATE TABLE kept (n int)"); err != nil {
		t.Fatal(err)
	}
	for name, stop := range map[string]func() error{
		"fast":      func() error { return server.Stop(ctx, Fast) },
		"immediate": func() error { return server.Stop(ctx, Immediate) },
		"kill":      func() error { return server.Kill(ctx) },
	} {
		if err := stop(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := server.Start(ctx); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
		if err := server.Exec(ctx, "", "SELECT * FROM kept"); err != nil {
			t.Fatalf("after %s: %v", name, err)
		}
	}
	if err := errors.Join(server.Pause(ctx), server.Resume(ctx), server.Exec(ctx, "", "SELECT 1")); err != nil {
		t.Errorf("pause and resume: %v", err)
	}
	if !strings.Contains(server.Log(ctx), "ready to accept connections") {
		t.Errorf("the log is not that of the server: %s", server.Log(ctx))
	}
	expectRemoved(t, server.runner.(*contained), server.Close(ctx))
}

func TestContainerRabbitMQRestartsWithItsPort(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := containersOnly(t, func() (*RabbitMQ, error) {
		return StartRabbitMQ(ctx, Options{Way: Containers, Private: true, Settings: []string{"heartbeat = 7"}})
	})
	closeAfter(t, server.Close)
	if err := errors.Join(server.Stop(ctx), server.Start(ctx), server.Kill(ctx), server.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	if err := server.AddVHost(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(server.URL("other"))
	if err != nil {
		t.Fatal(err)
	}
	if conn.Config.Heartbeat.Seconds() != 7 {
		t.Errorf("the setting did not arrive: heartbeat %s", conn.Config.Heartbeat)
	}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	if output, err := server.Ctl(ctx, "close_all_connections", "--global", "for a test"); err != nil {
		t.Fatalf("rabbitmqctl: %v: %s", err, output)
	}
	<-closed
	if _, err := server.Ctl(ctx, "no_such_command"); err == nil {
		t.Error("a failed rabbitmqctl is reported as a success")
	}
	expectRemoved(t, server.runner.(*contained), server.Close(ctx))
}

func expectRemoved(t *testing.T, c *contained, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	docker, err := engine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = docker.Close() }()
	if _, err := docker.ContainerInspect(t.Context(), c.id, client.ContainerInspectOptions{}); err == nil {
		t.Error("the container still exists after Close")
	}
}
