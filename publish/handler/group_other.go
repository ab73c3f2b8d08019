//go:build !unix

package handler

import "os/exec"

func ownGroup(*exec.Cmd) {}

func killGroup(command *exec.Cmd) { _ = command.Process.Kill() }
