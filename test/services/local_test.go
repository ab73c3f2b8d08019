package services

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// gone reports whether a process has ended.
func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func localOnly(t *testing.T, settings ...string) Options {
	return Options{Way: Local, Private: true, Settings: settings, Log: logTo(t)}
}

func TestLocalPostgresRestartsWithItsDataAndPort(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, err := StartPostgres(ctx, localOnly(t, "wal_sender_timeout=2s"))
	Need(t, err)
	closeAfter(t, server.Close)
	if err := server.Exec(ctx, "", "CREATE TABLE kept (n int)"); err != nil {
		t.Fatal(err)
	}
	folder, address := server.runner.(*local).folder, server.URL("")
	stops := map[string]func() error{
		"fast":      func() error { return server.Stop(ctx, Fast) },
		"immediate": func() error { return server.Stop(ctx, Immediate) },
		"kill":      func() error { return server.Kill(ctx) },
		"killed while paused": func() error {
			if err := server.Pause(ctx); err != nil {
				return err
			}
			return server.Kill(ctx)
		},
	}
	for name, stop := range stops {
		pid := server.PID()
		children, err := descendants(pid)
		if err != nil || len(children) == 0 {
			t.Fatalf("postgres has children %v, %v", children, err)
		}
		if err := stop(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !gone(pid) || server.PID() != 0 {
			t.Errorf("%s: the postmaster still runs", name)
		}
		if err := server.Start(ctx); err != nil {
			t.Fatalf("start after %s: %v", name, err)
		}
		if err := server.Exec(ctx, "", "SELECT * FROM kept"); err != nil || server.URL("") != address {
			t.Fatalf("after %s: %v", name, err)
		}
	}
	pid := server.PID()
	if err := server.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); !gone(pid) || !os.IsNotExist(err) {
		t.Errorf("after Close: process gone %v, folder %v", gone(pid), err)
	}
	if sharedMemory(pid) {
		t.Error("after Close: the shared memory still exists")
	}
}

// sharedMemory reports whether there is a System V segment that a process has created.
func sharedMemory(pid int) bool {
	segments, _ := os.ReadFile("/proc/sysvipc/shm") // only Linux has it
	for line := range strings.Lines(string(segments)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == strconv.Itoa(pid) {
			return true
		}
	}
	return false
}

func TestLocalRabbitMQRestartsWithItsPort(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, err := StartRabbitMQ(ctx, localOnly(t, "heartbeat = 7"))
	Need(t, err)
	closeAfter(t, server.Close)
	running := server.runner.(*local)
	first, epmd := server.PID(), running.helpers[0].pid()
	if err := server.Stop(ctx); err != nil { // operators also kill servers
		t.Fatal(err)
	}
	if !gone(first) {
		t.Error("the broker still runs")
	}
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	first = server.PID()
	conn, err := amqp.Dial(server.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	if conn.Config.Heartbeat.Seconds() != 7 {
		t.Errorf("the setting did not arrive: heartbeat %s", conn.Config.Heartbeat)
	}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	if output, err := server.Ctl(ctx, "close_all_connections", "--global", "for a test"); err != nil {
		t.Errorf("rabbitmqctl: %v: %s", err, output)
	}
	if reason := <-closed; reason == nil || !strings.Contains(reason.Reason, "for a test") {
		t.Errorf("the connection was closed for %v", reason)
	}
	if err := server.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(running.folder); !gone(first) || !gone(epmd) || !os.IsNotExist(err) {
		t.Errorf("after Close: broker gone %v, epmd gone %v, folder %v", gone(first), gone(epmd), err)
	}
}

func TestDatabasesAreSeparateAndDroppedWithTheirSlots(t *testing.T) {
	t.Parallel()
	var first string
	t.Run("inner", func(t *testing.T) {
		first = Database(t, "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
		if second := Database(t); second == first {
			t.Fatalf("two tests got the same database: %s", first)
		}
		conn, err := pgx.Connect(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		var encoding string
		if err := conn.QueryRow(t.Context(), "SHOW server_encoding").Scan(&encoding); err != nil || encoding != "LATIN1" {
			t.Errorf("encoding %q, %v", encoding, err)
		}
		create := "SELECT pg_create_logical_replication_slot($1, 'pgoutput')"
		if _, err := conn.Exec(t.Context(), create, Name(t)); err != nil {
			t.Error(err)
		}
	})
	if conn, err := pgx.Connect(t.Context(), first); err == nil {
		t.Errorf("the database still exists after its test")
		_ = conn.Close(t.Context())
	}
}

func TestVirtualHostsAreSeparateAndDeleted(t *testing.T) {
	t.Parallel()
	var first string
	t.Run("inner", func(t *testing.T) {
		first = VHost(t)
		for _, address := range []string{first, VHost(t)} {
			declareQueue(t, address)
		}
	})
	if !SharedRabbitMQ(t).CanCtl() {
		t.Skip("the broker has no management API: virtual hosts cannot be listed")
	}
	if conn, err := amqp.Dial(first); err == nil {
		t.Errorf("the virtual host still exists after its test")
		_ = conn.Close()
	}
}

// declareQueue fails if a queue of that name exists.
func declareQueue(t *testing.T, address string) {
	t.Helper()
	conn, err := amqp.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	name := "the-same-name"
	if !SharedRabbitMQ(t).CanCtl() {
		name = Name(t)
	}
	if _, err := channel.QueueDeclarePassive(name, false, true, false, false, nil); err == nil {
		t.Fatalf("%s has the queue already", name)
	}
	if channel, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	if _, err := channel.QueueDeclare(name, false, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
}
