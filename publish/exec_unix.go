//go:build unix

package publish

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps Ctrl-C on a terminal from the handler: it works until the relay has drained.
func ownGroup(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends the handler and its children.
func killGroup(command *exec.Cmd) { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
