// Package gauge measures what processes of this machine use: processor time and memory, as /proc tells.
package gauge

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// tick is the unit of processor time in /proc: USER_HZ, which is 100 on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// CPU is the processor time that a process has used so far, in all and in the kernel. What its children used is not in it.
func CPU(pid int) (all, kernel time.Duration, err error) {
	stat, err := readStat(pid)
	if err != nil {
		return 0, 0, err
	}
	return time.Duration(stat.UTime+stat.STime) * tick, time.Duration(stat.STime) * tick, nil
}

// Little is what a process that has next to nothing to do has used so far.
type Little struct {
	// CPU is the processor time by the scheduler's clock: it may be less than a tick of 10 ms.
	CPU time.Duration
	// Wakes is how often a thread went to sleep, and so was woken.
	Wakes uint64
}

// MeasureLittle measures the threads that a process has now.
func MeasureLittle(pid int) (Little, error) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return Little{}, fmt.Errorf("measure process %d: %w", pid, err)
	}
	var total Little
	for _, thread := range threads {
		stat, err := thread.Schedstat()
		if err != nil {
			continue // ended meanwhile
		}
		status, err := thread.NewStatus()
		if err != nil {
			continue
		}
		total.CPU += time.Duration(stat.RunningNanoseconds)
		total.Wakes += status.VoluntaryCtxtSwitches
	}
	return total, nil
}

// PeakMemory is the most resident memory that a process has had, in bytes.
func PeakMemory(pid int) (uint64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("measure process %d: %w", pid, err)
	}
	status, err := process.NewStatus()
	if err != nil {
		return 0, fmt.Errorf("measure process %d: %w", pid, err)
	}
	return status.VmHWM, nil
}

func readStat(pid int) (procfs.ProcStat, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, fmt.Errorf("measure process %d: %w", pid, err)
	}
	stat, err := process.Stat()
	if err != nil {
		return procfs.ProcStat{}, fmt.Errorf("measure process %d: %w", pid, err)
	}
	return stat, nil
}
