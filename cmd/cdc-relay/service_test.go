package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// command is a separate process, for tests that send signals.
type command struct {
	*exec.Cmd
	// lines are the lines of its log.
	lines  <-chan string
	exited chan struct{}
	stdout *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, env environment, args ...string) *command {
	t.Helper()
	stdout := new(lockedBuffer)
	c := startTo(t, stdout, env, args...)
	c.stdout = stdout
	return c
}

func program(t *testing.T, env environment, args ...string) *exec.Cmd {
	t.Helper()
	executable, err := os.Executable()
	must(t, err)
	c := exec.Command(executable, args...)
	c.Env = append(os.Environ(), beMain+"=1")
	for name, value := range env {
		c.Env = append(c.Env, name+"="+value)
	}
	return c
}

func startTo(t *testing.T, stdout io.Writer, env environment, args ...string) *command {
	t.Helper()
	c := &command{Cmd: program(t, env, args...), exited: make(chan struct{})}
	c.Stdout = stdout
	stderr, err := c.StderrPipe()
	must(t, err)
	must(t, c.Start())
	lines := make(chan string, 10_000)
	c.lines = lines
	go func() {
		defer close(c.exited)
		for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
			lines <- scanner.Text()
		}
		close(lines)
		_ = c.Wait()
	}()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.exited
	})
	return c
}

// await returns the first line of the log that contains the text.
func (c *command) await(t *testing.T, text string) string {
	t.Helper()
	var log []string
	deadline := time.After(await.Hang())
	for {
		select {
		case line, open := <-c.lines:
			if !open {
				t.Fatalf("the process ended before it logged %q:\n%s\n%s", text, strings.Join(log, "\n"), c.stdout)
			}
			log = append(log, line)
			if strings.Contains(line, text) {
				return line
			}
		case <-deadline:
			t.Fatalf("the process has not logged %q:\n%s", text, strings.Join(log, "\n"))
		}
	}
}

// ends waits until the process ends, and expects this exit code.
func (c *command) ends(t *testing.T, code int) {
	t.Helper()
	await.Receive(t, "the program ends", c.exited)
	if got := c.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d\n%v", got, code, c.stdout)
	}
}

func (c *command) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	must(t, c.Process.Signal(sig))
}

// stopsWell ends the process by SIGTERM, and expects exit code 0.
func (c *command) stopsWell(t *testing.T) {
	t.Helper()
	c.signal(t, syscall.SIGTERM)
	c.ends(t, exitDone)
}

func (c *command) httpURL(t *testing.T) string {
	t.Helper()
	var line struct{ Addr string }
	must(t, json.Unmarshal([]byte(c.await(t, "serving /livez")), &line))
	return "http://" + line.Addr
}

func page(t *testing.T, url string) string {
	t.Helper()
	status, body := fetch(t, http.MethodGet, url, nil)
	return fmt.Sprintf("%d %s", status, body)
}

func TestRunPublishesTheDemoAndStops(t *testing.T) {
	t.Parallel()
	env, _ := fresh(t)
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	relay := start(t, env, "run", "--setup")
	address := relay.httpURL(t)
	relay.await(t, `"event":"streaming"`)

	r := cdcRelay(t, env, "demo", "--count", "15", "--rate", "100")
	wantOutput(t, r, "15 sent, 15 arrived; commit to arrival: p50 ")
	if arrivals := regexp.MustCompile(`(?m)^ +#\d+  .* arrived after \d+\.\d ms$`).FindAllString(r.stdout, -1); len(arrivals) != 15 {
		t.Errorf("%d arrivals are shown:\n%s", len(arrivals), r.stdout)
	}
	if got := page(t, address+"/readyz"); !strings.HasPrefix(got, "200 ready (streaming)\n") {
		t.Errorf("/readyz: %s", got)
	}
	if got := page(t, address+"/livez"); !strings.HasPrefix(got, "200 live (streaming)\n") {
		t.Errorf("/livez: %s", got)
	}
	if got := page(t, address+"/metrics"); !strings.Contains(got, "\ncdc_relay_messages_published_total 15\n") {
		t.Errorf("/metrics: %s", got)
	}

	// demo --console serves the console of the relay while the demo runs, and stops it at the end.
	env["CDC_RELAY_CONSOLE_LISTEN"] = "127.0.0.1:0"
	demo := start(t, env, "demo", "--console", "--rate", "50")
	var console string
	await.Until(t, "the demo shows arrivals", func() bool {
		first, rest, _ := strings.Cut(demo.stdout.String(), "\n")
		console = strings.TrimPrefix(first, "console: ")
		return strings.Contains(rest, " arrived after ")
	}, demo.stdout.String)
	wantPage(t, console, http.StatusOK, "public.outbox")
	demo.signal(t, syscall.SIGINT)
	demo.ends(t, exitDone)
	relay.stopsWell(t)
	r = cdcRelay(t, env, "demo", "--console", "--console-listen", "0.0.0.0:0")
	want(t, r, exitUsage)
	wantTexts(t, r.stderr, "want an address on loopback")
}

// SIGHUP from a closed terminal ends the relay as SIGTERM does, except under nohup.
func TestSIGHUPStopsTheRelayGracefully(t *testing.T) {
	env, _ := withTables(t)
	file, hangUp := filepath.Join(t.TempDir(), "live"), make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP) // a child of a test below nohup ignores it otherwise
	defer signal.Stop(hangUp)
	relay := start(t, env, "run", "--publisher", "stdout", "--liveness-file", file)
	for _, err := os.Stat(file); err != nil; _, err = os.Stat(file) {
		if t.Context().Err() != nil {
			t.Fatal("there is no liveness file")
		}
	}
	relay.signal(t, syscall.SIGHUP)
	relay.ends(t, exitDone)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the liveness file is still there: %v", err)
	}
}

func TestDemoStoppedByCtrlCLeavesNoRow(t *testing.T) {
	t.Parallel()
	env, conn := withTables(t, "--tables-only")
	env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
	demo := start(t, env, "demo", "--rate", "1000")
	for query[int](t, conn, "SELECT count(*) FROM outbox") == 0 {
		if t.Context().Err() != nil {
			t.Fatal("no row was inserted")
		}
	}
	demo.signal(t, syscall.SIGINT)
	demo.ends(t, exitDone)
	wantTexts(t, demo.stdout.String(), " sent, 0 arrived\n")
	wantValue(t, conn, 0, "SELECT count(*) FROM outbox")
}

// A relay that cannot write ends with the error, and deletes no unwritten message.
func TestAnOutputThatFailsStopsTheRelay(t *testing.T) {
	t.Parallel()
	for output, test := range map[string]struct {
		open func() (*os.File, error)
		says string
	}{
		"a closed pipe": {func() (*os.File, error) {
			reader, writer, err := os.Pipe()
			return writer, errors.Join(err, reader.Close())
		}, "the reader has closed the output"},
		"a full disk": {func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) }, "no space left on device"},
	} {
		for _, command := range []string{"run", "drain"} {
			t.Run(command+" into "+output, func(t *testing.T) {
				env, conn := withTables(t, "--mode", "poll")
				execute(t, conn, `INSERT INTO outbox (routing_key, payload) SELECT 'k', '1' FROM generate_series(1, 3)`)
				file, err := test.open()
				if err != nil {
					t.Skip(err) // only Linux has /dev/full
				}
				relay := startTo(t, file, env, command, "--mode", "poll", "--publisher", "stdout")
				_ = file.Close()
				relay.await(t, test.says)
				relay.ends(t, exitFailed)
				wantValue(t, conn, "k0 k0 k0", "SELECT string_agg(routing_key || attempts, ' ') FROM outbox")
			})
		}
	}
}

// A relay waits for its reader as long as that takes, until a signal ends it. Then the row of the line that the reader
// has not taken stays. The next leader marks it.
func TestARelayWaitsForAReaderThatPauses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		command string
		signal  os.Signal
		code    int
	}{
		{"drain", nil, exitDone},
		{"drain", syscall.SIGTERM, exitFailed},
		{"drain", syscall.SIGINT, exitFailed},
		{"run", syscall.SIGTERM, exitDone},
	} {
		t.Run(fmt.Sprint(test.command, test.signal), func(t *testing.T) {
			env, conn := withTables(t, "--mode", "poll")
			execute(t, conn, `INSERT INTO outbox (routing_key, payload) VALUES ('k', to_json(repeat('x', 1000000)))`) // more than a pipe takes
			reader, writer, err := os.Pipe()
			must(t, err)
			defer reader.Close()
			relay := startTo(t, writer, env, test.command, "--mode", "poll", "--publisher", "stdout", "--shutdown-timeout", "100ms")
			_ = writer.Close()
			first := make([]byte, 1)
			_, err = reader.Read(first) // the write has begun
			must(t, err)
			left := "k0"
			if test.signal == nil {
				text, err := io.ReadAll(reader)
				if left = ""; err != nil || !json.Valid(append(first, text...)) {
					t.Errorf("read %d bytes, %v", len(text), err)
				}
			} else {
				relay.signal(t, test.signal)
			}
			if test.code == exitFailed {
				relay.await(t, "stopped: the other rows wait in the table")
			}
			relay.ends(t, test.code)
			wantValue(t, conn, left, "SELECT coalesce(string_agg(routing_key || attempts, ' '), '') FROM outbox")
		})
	}
}

// A row that nobody could read stays in the table.
func TestAClosedOutputDeletesNoRow(t *testing.T) {
	env, conn := withTables(t, "--mode", "poll")
	relay := program(t, env)
	for _, test := range []struct {
		output string
		code   int
		left   int
	}{{">&-", exitUsage, 1}, {">/dev/null", exitDone, 0}} {
		execute(t, conn, `DELETE FROM outbox; INSERT INTO outbox (routing_key, payload) VALUES ('k', '1')`)
		cmd := exec.CommandContext(await.Context(t), "sh", "-c", `exec "$0" drain --mode poll --publisher stdout `+test.output, relay.Path)
		cmd.Env = relay.Env
		output, _ := cmd.CombinedOutput()
		left := query[int](t, conn, "SELECT count(*)::int FROM outbox")
		if code := cmd.ProcessState.ExitCode(); code != test.code || left != test.left {
			t.Errorf("%s: exit code %d, %d rows are left\n%s", test.output, code, left, output)
		}
	}
}

// This also holds before the relay has checked its database. timeout(1) and others signal a process and then its whole
// group.
func TestOneSignalStopsRun(t *testing.T) {
	for _, times := range []int{1, 2} {
		env, _ := fresh(t)
		signals := make(chan os.Signal, times)
		for range times {
			signals <- syscall.SIGTERM
		}
		args := []string{"run", "--publisher", "stdout", "--shutdown-timeout", "100ms"}
		p := onScreen(env, strings.NewReader(""), io.Discard, signals, args...)
		if code := p.run(await.Context(t)); code != exitDone {
			t.Errorf("sent %d times: exit code %d", times, code)
		}
	}
}
