package handler

import "syscall"

// dieWithRelay kills a handler that does not end with its input when the relay was killed.
func dieWithRelay(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
