package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
	"github.com/cdc-relay/cdc-relay/test/systemdtest"
)

func TestSystemdGetsReadinessStatusAndStopping(t *testing.T) {
	t.Parallel()
	socket, said := systemdtest.Listen(t)
	env := environment{
		"CDC_RELAY_DATABASE_URL": services.Database(t), "CDC_RELAY_SLOT": services.Name(t), "CDC_RELAY_PUBLISHER": "stdout",
		"CDC_RELAY_HTTP_ADDR": "", "NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "900000",
	}
	want(t, cdcRelay(t, env, "setup"), exitDone)
	c := start(t, env, "run")
	systemdtest.Await(t, said, "READY=1")
	systemdtest.Await(t, said, "WATCHDOG=1")
	systemdtest.Await(t, said, "STATUS=ready (streaming)")
	c.signal(t, syscall.SIGTERM)
	systemdtest.Await(t, said, "STOPPING=1")
	if code := c.exit(t); code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

// A relay that waits for Postgres counts as started, and reports what it waits for.
func TestSystemdStatusNamesWhatAStartWaitsFor(t *testing.T) {
	t.Parallel()
	socket, said := systemdtest.Listen(t)
	start(t, environment{
		"CDC_RELAY_DATABASE_URL": someDatabase, "CDC_RELAY_PUBLISHER": "stdout", "CDC_RELAY_HTTP_ADDR": "", "NOTIFY_SOCKET": socket,
	}, "run")
	message := systemdtest.Await(t, said, "READY=1")
	if !strings.HasPrefix(message, "STATUS=not ready (starting); start: ") || !strings.Contains(message, "connection refused") ||
		strings.Contains(message, "WATCHDOG=1") || strings.Contains(message, "s3cr3t") {
		t.Errorf("got %s", message)
	}
}
