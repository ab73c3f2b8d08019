// Package gauge measures the processor time and memory of processes on this machine, from /proc.
package gauge

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// tick is the unit of processor time in /proc: USER_HZ, which is 100 on every architecture that Go supports.
const tick = 10 * time.Millisecond

// CPU returns the processor time of a process so far, without its children.
func CPU(pid int) (time.Duration, error) {
	stat, err := readStat(pid)
	return time.Duration(stat.UTime+stat.STime) * tick, err
}

// PeakMemory returns the maximum resident memory of a process, in bytes.
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

// Hardware describes processor and memory, with a comma before each; "" if there is no /proc.
func Hardware() (text string) {
	system, err := procfs.NewDefaultFS()
	if err != nil {
		return ""
	}
	if cores, err := system.CPUInfo(); err == nil && len(cores) > 0 {
		text += ", " + cores[0].ModelName
	}
	if memory, err := system.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		text += fmt.Sprintf(", %d GB", *memory.MemTotalBytes>>30)
	}
	return text
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
