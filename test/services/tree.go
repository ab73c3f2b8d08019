package services

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// signalTree sends sig to a server and all its descendants: Postgres puts each backend into its own process group. It
// stops the server first, so that it starts no process while they are listed.
func signalTree(p *process, sig syscall.Signal) error {
	if sig != syscall.SIGCONT {
		if err := p.signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	children, err := descendants(p.pid())
	for _, pid := range children {
		if e := syscall.Kill(pid, sig); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("signal process %d: %w", pid, e))
		}
	}
	err = errors.Join(err, p.signal(sig))
	if sig == syscall.SIGKILL {
		awaitGone(children)
	}
	return err
}

// awaitGone waits until killed processes have ended. Until then a backend keeps the server's shared memory, and the
// server cannot start again.
func awaitGone(pids []int) {
	const timeout, step = 2 * time.Second, 5 * time.Millisecond
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(step) {
		if !slices.ContainsFunc(pids, func(pid int) bool { return syscall.Kill(pid, 0) == nil && !zombie(pid) }) {
			return
		}
	}
}

// zombie reports whether a process has ended but was not reaped yet. That takes a while if process 1 is not an init. It
// returns false without /proc.
func zombie(pid int) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	fields := afterName(content)
	return len(fields) > 0 && fields[0] == "Z"
}

// afterName returns the fields of a stat file after the name: pid (name) state parent …; the name can contain spaces
// and parentheses.
func afterName(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// descendants lists all processes that pid started, directly or not.
func descendants(pid int) ([]int, error) {
	parents, err := parentsFromProc()
	if err != nil {
		parents, err = parentsFromPS()
	}
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := []int{pid}
	for i := 0; i < len(found); i++ {
		for child, parent := range parents {
			if parent == found[i] {
				found = append(found, child)
			}
		}
	}
	return found[1:], nil
}

// parentsFromProc reads the parent of every process from /proc.
func parentsFromProc() (map[int]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, os.ErrNotExist)
	}
	parents := make(map[int]int, len(files))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // ended meanwhile
		}
		fields := afterName(content)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || len(fields) < 2 {
			continue
		}
		if parents[pid], err = strconv.Atoi(fields[1]); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	return parents, nil
}

// parentsFromPS uses ps, for systems without /proc.
func parentsFromPS() (map[int]int, error) {
	output, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, err
	}
	parents := map[int]int{}
	for line := range strings.Lines(string(output)) {
		var pid, parent int
		if _, err := fmt.Sscan(line, &pid, &parent); err == nil {
			parents[pid] = parent
		}
	}
	return parents, nil
}
