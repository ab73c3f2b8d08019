package amqp

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/services"
)

// slowSync delays the calls of a program that bring data to the disk.
const slowSync = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fsync(int fd) { usleep(DELAY); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { usleep(DELAY); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
`

// slowDisk restarts a private broker so that each fsync takes longer. It needs a C compiler, and a broker that is a
// process on this machine.
func slowDisk(b *testing.B, broker *services.RabbitMQ, delay time.Duration) {
	compiler, err := exec.LookPath("cc")
	if err != nil || broker.Way != services.Local {
		b.Skip("a slow disk needs a C compiler and a local broker")
	}
	folder, err := os.MkdirTemp("", "slow-disk") // not that of the test, which the broker's user cannot read
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(folder) })
	source, library := filepath.Join(folder, "slow.c"), filepath.Join(folder, "slow.so")
	if err := os.WriteFile(source, []byte(slowSync), 0o600); err != nil {
		b.Fatal(err)
	}
	output, err := exec.Command(compiler, "-shared", "-fPIC", fmt.Sprintf("-DDELAY=%d", delay.Microseconds()),
		"-o", library, source, "-ldl").CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, output)
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		b.Fatal(err)
	}
	loadAtStart(b, broker, library)
}

// loadAtStart restarts the broker with the library. Its scripts read the file of RABBITMQ_CONF_ENV_FILE.
func loadAtStart(b *testing.B, broker *services.RabbitMQ, library string) {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", broker.PID()))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(environment), "RABBITMQ_CONF_ENV_FILE=")
	file, _, _ := strings.Cut(rest, "\x00")
	if err := os.WriteFile(file, []byte("export LD_PRELOAD="+library+"\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := broker.Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := broker.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	loaded, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", broker.PID()))
	if err != nil || !strings.Contains(string(loaded), library) {
		b.Fatalf("the broker has not loaded %s: %v", library, err)
	}
}
