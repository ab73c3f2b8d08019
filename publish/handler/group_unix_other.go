//go:build unix && !linux

package handler

import "syscall"

// dieWithRelay does nothing here: only Linux can do it.
func dieWithRelay(*syscall.SysProcAttr) {}
