package services

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cenkalti/backoff/v5"
)

// asRun makes the test binary behave as with-services, so that a test can kill it.
const asRun = "CDC_RELAY_TEST_AS_RUN"

func TestMain(m *testing.M) {
	if command := os.Getenv(asRun); command != "" {
		code, err := Run(context.Background(), Options{}, "sh", "-c", command)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}
	Main(m)
}

// gone reports whether a process has ended.
func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func wayIs(way Way) bool { return Way(os.Getenv(EnvWay)) == way }

// running starts the test binary as with-services, with its own temporary folder.
func running(t *testing.T, command string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	tmp, err := os.MkdirTemp("/tmp", "cdc-relay-test-") // the servers' users cannot enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(os.Args[0])
	cmd.Env = []string{
		asRun + "=" + command, EnvWay + "=" + string(Local), "TMPDIR=" + tmp,
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
	}
	cmd.Stderr = os.Stderr
	return cmd, tmp
}

// The command gets the addresses. No server is left, however it ends.
func TestRunReturnsTheExitCodeAndStopsEveryServer(t *testing.T) {
	for _, look := range []func() (string, error){findPostgres, findRabbitMQ} {
		_, err := find(t.Context(), Options{}, look)
		Need(t, err)
	}
	t.Parallel()
	for name, end := range map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"terminated":  {syscall.SIGTERM, 3},
		"interrupted": {syscall.SIGINT, 128 + 2},
		"killed":      {syscall.SIGKILL, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, tmp := running(t, `trap 'exit 3' TERM; test -s "$CDC_RELAY_SERVICES_STATE" || exit 4
				echo "$CDC_RELAY_DATABASE_URL $CDC_RELAY_AMQP_URL"; sleep 1000 & wait`)
			output, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(output).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "postgres://") || !strings.Contains(line, " amqp://") {
				t.Fatalf("the command saw %q, %v", line, err)
			}
			below, err := descendants(cmd.Process.Pid)
			if err != nil || len(below) < 8 {
				t.Fatalf("with-services has the processes %v, %v below it", below, err)
			}
			if err := cmd.Process.Signal(end.signal); err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, output)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != end.code {
				t.Errorf("exit code %d: expected %d", code, end.code)
			}
			allGone(t, below)
			nothingLeft(t, tmp)
		})
	}
}

// allGone waits for the processes to end: guards end those of a killed owner. A zombie without an init to reap it
// counts as ended.
func allGone(t *testing.T, pids []int) {
	t.Helper()
	_, err := backoff.Retry(t.Context(), func() (struct{}, error) {
		for _, pid := range pids {
			if !gone(pid) && !zombie(pid) {
				return struct{}{}, fmt.Errorf("process %d still runs", pid)
			}
		}
		return struct{}{}, nil
	}, backoff.WithMaxElapsedTime(startTimeout))
	if err != nil {
		t.Error(err)
	}
}

// nothingLeft waits until the folders are removed.
func nothingLeft(t *testing.T, tmp string) {
	t.Helper()
	_, err := backoff.Retry(t.Context(), func() (struct{}, error) {
		left, err := filepath.Glob(filepath.Join(tmp, "*"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind: %v", left)
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(startTimeout))
	if err != nil {
		t.Error(err)
	}
}
