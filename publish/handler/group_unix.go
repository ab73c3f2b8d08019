//go:build unix

package handler

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps a terminal's Ctrl-C from the handler, which must work until the relay has drained.
func ownGroup(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithRelay(command.SysProcAttr)
}

// killGroup kills the handler and its children.
func killGroup(command *exec.Cmd) { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
