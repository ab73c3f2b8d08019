package services

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
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
	process, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := process.Stat()
	return err == nil && stat.State == "Z"
}

// descendants lists all processes that pid started, directly or not.
func descendants(pid int) ([]int, error) {
	parents, err := parentsOfAll()
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

// parentsOfAll returns the parent of every process; on systems without /proc, ps knows it.
func parentsOfAll() (map[int]int, error) {
	parents := make(map[int]int)
	if processes, err := procfs.AllProcs(); err == nil {
		for _, process := range processes {
			if stat, err := process.Stat(); err == nil { // otherwise it has ended meanwhile
				parents[stat.PID] = stat.PPID
			}
		}
		return parents, nil
	}
	output, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	for line := range strings.Lines(string(output)) {
		var pid, parent int
		if _, err := fmt.Sscan(line, &pid, &parent); err == nil {
			parents[pid] = parent
		}
	}
	return parents, err
}
