package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/test/bench/gauge"
)

// stopTimeout is how long a process may take to end after SIGTERM.
const stopTimeout = 40 * time.Second

// child is a process to measure. Its output goes to a file.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
}

func (w *world) startChild(name string, cmd *exec.Cmd, input io.Reader) (*child, error) {
	log := w.logFile(name)
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer func() { _ = file.Close() }() // the process has its own descriptor
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that Ctrl-C reaches it only through us
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{name: name, cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_ = cmd.Wait() // cmd.ProcessState has the result
	}()
	return c, nil
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// cpu returns the processor time so far, in total and in the kernel.
func (c *child) cpu() (all, kernel time.Duration, err error) {
	if !c.ended() {
		return gauge.CPU(c.cmd.Process.Pid)
	}
	kernel = c.cmd.ProcessState.SystemTime()
	return c.cmd.ProcessState.UserTime() + kernel, kernel, nil
}

// failure says why the process failed; nil: it did not.
func (c *child) failure() error {
	<-c.done
	if c.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("%s ended with %s; its log ends:\n%s", c.name, c.cmd.ProcessState, c.logEnd())
}

// await waits for a process that ends by itself.
func (c *child) await(ctx context.Context) error {
	select {
	case <-c.done:
		return c.failure()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop sends SIGTERM and waits.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-c.done:
		return c.failure()
	case <-time.After(stopTimeout):
		err := c.cmd.Process.Kill()
		<-c.done
		return errors.Join(fmt.Errorf("%s has not stopped %s after SIGTERM", c.name, stopTimeout), err)
	}
}

func (c *child) logEnd() string {
	content, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	const most = 2048
	return string(content[max(0, len(content)-most):])
}
