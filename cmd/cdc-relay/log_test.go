package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// fullPipe returns a pipe that nobody reads and that takes nothing more, and its reader.
func fullPipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { _ = reader.Close(); _ = writer.Close() })
	for {
		must(t, writer.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
		if _, err := writer.Write(make([]byte, 4096)); errors.Is(err, os.ErrDeadlineExceeded) {
			return reader, writer
		}
	}
}

// A relay whose log nobody reads publishes, and ends when it is told to.
func TestTheLogNeverStopsTheRelay(t *testing.T) {
	t.Parallel()
	_, unread := fullPipe(t)
	gone, closed, err := os.Pipe()
	must(t, err)
	_ = gone.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no full device")
	}
	t.Cleanup(func() { _ = closed.Close(); _ = full.Close() })
	for _, test := range []struct {
		stderr *os.File
		name   string
		flags  []string
	}{
		{unread, "nobody reads", nil},
		{unread, "nobody reads the text", []string{"--log-format", "text", "--log-level", "debug"}},
		{closed, "the reader is gone", nil},
		{full, "the disk is full", []string{"--log-level", "debug"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, db := withTables(t)
			env["CDC_RELAY_AMQP_URL"] = services.VHost(t)
			port, err := services.FreePort()
			must(t, err)
			address := fmt.Sprintf("127.0.0.1:%d", port)
			c := startSilent(t, test.stderr, env, append([]string{"run", "--http-addr", address}, test.flags...)...)
			// Each of these rows is rejected, and logged.
			execute(t, db, `INSERT INTO outbox (routing_key, payload) SELECT 'nowhere', '1' FROM generate_series(1, 500)`)
			await.Until(t, "all rows are rejected", func() bool {
				var left int
				err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE attempts = 0`).Scan(&left)
				return err == nil && left == 0
			})
			await.Until(t, "the relay is ready", func() bool {
				return strings.HasPrefix(page(t, "http://"+address+"/readyz"), "200 ")
			})
			drops := test.stderr != unread // what nobody reads fits into the buffer
			if got := page(t, "http://"+address+"/metrics"); strings.Contains(got, "\ncdc_relay_log_lines_dropped_total 0\n") == drops {
				t.Errorf("dropped lines are counted wrong: %s", got)
			}
			must(t, c.Process.Signal(syscall.SIGTERM))
			if err := c.Wait(); err != nil {
				t.Errorf("the relay ended with: %v", err)
			}
		})
	}
}

// A command that cannot print its error ends with the second signal.
func TestASecondSignalEndsAProcessWhoseErrorsNobodyReads(t *testing.T) {
	t.Parallel()
	_, unread := fullPipe(t)
	for _, args := range [][]string{{"run"}, {"setup", "--unknown"}, {"stats"}} {
		c := startSilent(t, unread, environment{"CDC_RELAY_DATABASE_URL": "postgres://127.0.0.1:1/shop", "CDC_RELAY_AMQP_URL": "amqp://127.0.0.1:1"}, args...)
		done := make(chan error, 1)
		go func() { done <- c.Wait() }()
		await.Until(t, fmt.Sprintf("%v ends", args), func() bool {
			_ = c.Process.Signal(syscall.SIGTERM)
			return len(done) > 0
		})
	}
}

// OpenTelemetry and net/http have loggers of their own, which write text to the standard error.
func TestLibrariesWriteToTheLogWithoutSecrets(t *testing.T) {
	t.Parallel()
	collector := services.Serve(t, func(client net.Conn) {
		_, _ = client.Read(make([]byte, 64<<10))
		_, _ = client.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 password=s3cr3t\r\n"))
	})
	env, db := fresh(t)
	env["CDC_RELAY_PUBLISHER"] = "stdout"
	env["OTEL_EXPORTER_OTLP_ENDPOINT"], env["OTEL_BSP_SCHEDULE_DELAY"] = "http://"+collector, "10"
	env["OTEL_EXPORTER_OTLP_HEADERS"] = "Authorization Bearer s3cr3t"
	want(t, cdcRelay(t, env, "setup"), exitDone)
	relay := start(t, env, "run", "--http-addr", "127.0.0.1:0")
	execute(t, db, `INSERT INTO outbox (routing_key, payload, headers) VALUES ('orders', '1', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}')`)
	var lines []string
	for !strings.Contains(strings.Join(lines, ""), "Unsolicited response") {
		lines = append(lines, await.Receive(t, "net/http logs", relay.lines))
	}
	relay.signal(t, syscall.SIGTERM)
	for line := range relay.lines {
		lines = append(lines, line)
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) || strings.Contains(line, "s3cr3t") {
			t.Errorf("got %s", line)
		}
	}
	if !strings.Contains(strings.Join(lines, ""), "parse headers") {
		t.Errorf("OpenTelemetry said nothing:\n%s", strings.Join(lines, "\n"))
	}
}

// Another writer to the standard error could block, leak a secret, or break a log of JSON.
func TestOnlyTheTerminalWritesToTheStandardStreams(t *testing.T) {
	t.Parallel()
	elsewhere := regexp.MustCompile(`^(os\.Std(out|err)|fmt\.Print.*|log\.(Print|Fatal|Panic|SetOutput|Default).*|slog\.(Debug|Info|Warn|Error)(Context)?)$`)
	files := token.NewFileSet()
	for name, file := range sources(t, files) {
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && filepath.Base(name) != "main.go" {
				if of, ok := s.X.(*ast.Ident); ok && of.Obj == nil && elsewhere.MatchString(of.Name+"."+s.Sel.Name) {
					t.Errorf("%s: %s.%s", files.Position(s.Pos()), of.Name, s.Sel.Name)
				}
			}
			return true
		})
	}
}

func startSilent(t *testing.T, stderr *os.File, env environment, args ...string) *exec.Cmd {
	t.Helper()
	c := program(t, env, args...)
	c.Stderr = stderr
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	return c
}

// A file of --liveness-file on a file system that hangs, or a library that does not return.
func TestAPartThatHangsDoesNotKeepTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopping, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, stop)
		hangs := make(chan error)
		defer close(hangs)
		began := time.Now()
		if err := waitForEnd(stopping, endGrace, func() error { return <-hangs }); err == nil || time.Since(began) != time.Hour+endGrace {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
	})
}
