package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
)

// errNotRunning is returned for a signal to a server that has ended.
var errNotRunning = errors.New("the server is not running")

// guardScript ends a server if its owner dies, and removes its folder. Only the owner holds the write end of the
// script's input: a line means that the owner has cleaned up itself, the end of input that the owner is dead.
const guardScript = `
trap '' INT TERM HUP
if read -r _; then exit 0; fi
kill -s QUIT -- "-$1" 2>/dev/null && sleep 1
kill -s KILL -- "-$1" 2>/dev/null
rm -rf -- "$2"
`

// process is one run of a server's program. It has its own process group, so Ctrl-C reaches the server only through its
// owner.
type process struct {
	cmd   *exec.Cmd
	guard *exec.Cmd
	word  io.WriteCloser // tells the guard to end
	done  chan struct{}  // closed when the program has ended
	ended atomic.Bool
}

// startProcess starts cmd, and a guard that ends it and removes folder if this process dies first.
func startProcess(cmd *exec.Cmd, folder string) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	err := p.startGuard(folder)
	go p.wait()
	if err != nil {
		_ = p.signalGroup(syscall.SIGKILL)
		<-p.done
		return nil, fmt.Errorf("start the guard of %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *process) startGuard(folder string) error {
	p.guard = exec.Command("/bin/sh", "-c", guardScript, "cdc-relay-guard", strconv.Itoa(p.cmd.Process.Pid), folder)
	p.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.guard.Dir = os.TempDir()
	word, err := p.guard.StdinPipe()
	if err != nil {
		return err
	}
	p.word = word
	if err := p.guard.Start(); err != nil {
		p.guard = nil
		return err
	}
	return nil
}

// wait reaps the program, kills the rest of its process group and dismisses the guard: later the group's number could
// belong to other processes.
func (p *process) wait() {
	_ = p.cmd.Wait() // cmd.ProcessState has the result
	p.ended.Store(true)
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	if p.guard != nil {
		_, _ = io.WriteString(p.word, "done\n")
		_ = p.word.Close()
		_ = p.guard.Wait()
	}
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal signals only the program itself. cmd.Process knows if the number is still valid.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return errNotRunning
	}
	return nil
}

func (p *process) signalGroup(sig syscall.Signal) error {
	if p.ended.Load() {
		return errNotRunning
	}
	return syscall.Kill(-p.pid(), sig)
}

func (p *process) waitEnd(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s to end: %w", p.cmd.Path, context.Cause(ctx))
	}
}
