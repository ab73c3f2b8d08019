package examples_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// redis is a Redis server of one test.
type redis struct {
	e       *shop
	port    string
	process *exec.Cmd
}

// startRedis starts a server, and stops it after the test.
func startRedis(e *shop, args ...string) *redis {
	e.t.Helper()
	port, err := services.FreePort()
	must(e.t, err)
	r := &redis{e: e, port: strconv.Itoa(port)}
	e.t.Cleanup(r.stop)
	r.start(append([]string{"--save", ""}, args...)...)
	return r
}

// startSentinel starts a Sentinel for one master, "shop".
func startSentinel(e *shop, master *redis) *redis {
	e.t.Helper()
	port, err := services.FreePort()
	config := filepath.Join(e.t.TempDir(), "sentinel.conf") // which Sentinel changes
	if err == nil {
		err = os.WriteFile(config, []byte("sentinel monitor shop 127.0.0.1 "+master.port+" 1\n"), 0o600)
	}
	must(e.t, err)
	r := &redis{e: e, port: strconv.Itoa(port)}
	e.t.Cleanup(r.stop)
	r.start(config, "--sentinel")
	return r
}

func (r *redis) start(args ...string) {
	r.e.t.Helper()
	args = append(args, "--port", r.port, "--bind", "127.0.0.1", "--dir", r.e.t.TempDir())
	r.process = exec.Command("redis-server", args...)
	if err := r.process.Start(); err != nil {
		r.e.t.Fatal(err)
	}
	await.Until(r.e.t, "Redis answers", func() bool {
		out, err := r.e.command("redis-cli -p " + r.port + " PING")
		return err == nil && !strings.Contains(out, "refused")
	})
}

// stop kills the server, which stores nothing.
func (r *redis) stop() {
	if r.process != nil {
		_ = r.process.Process.Signal(syscall.SIGKILL)
		_ = r.process.Wait()
		r.process = nil
	}
}

// cli runs a command of Redis and returns its output.
func (r *redis) cli(command string) string {
	r.e.t.Helper()
	out, err := r.e.command("redis-cli -p " + r.port + " " + command)
	if err != nil {
		r.e.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// fault is a state of Redis in which it stores nothing.
type fault struct {
	begin, end func()
	says       string
}

func (r *redis) faults() []fault {
	run := func(command string) func() { return func() { r.cli(command) } }
	return []fault{
		{run("CONFIG SET maxmemory 1"), run("CONFIG SET maxmemory 0"), "maxmemory"},
		{run("REPLICAOF 127.0.0.1 1"), run("REPLICAOF NO ONE"), "read only replica"},
		{run("CONFIG SET requirepass s3cr3t"), run("-a s3cr3t CONFIG SET requirepass ''"), "Authentication required"},
		{r.stop, func() { r.start("--save", "") }, "refused"},
	}
}

// line is a line of the relay for the default exchange. The last of two equal keys counts, so more can replace a key.
func line(routingKey, more string) string {
	return `{"id":1,"message_id":"5f0c4a86-5e0b-4f0c-9b0e-6b1d3c1f9a52","exchange":"","routing_key":"` + routingKey + `","ordering_key":null,` +
		`"headers":null,"properties":null,"created_at":"2026-11-23T10:00:00Z","possible_duplicate":false` + more + `,"payload":[[1],{},{}],"payload_base64":null}`
}

// answers gives a handler one line, and wants one answer.
func (e *shop) answers(handler, outcome, detail, line string) {
	e.t.Helper()
	out, err := e.command(handler + " <<'END'\n" + line + "\nEND")
	var answer struct{ Outcome, Detail string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &answer)
	}
	if err != nil || answer.Outcome != outcome || !strings.Contains(answer.Detail, detail) {
		e.t.Errorf("%s: %v, %s, want %s: %s", handler, err, out, outcome, detail)
	}
}
