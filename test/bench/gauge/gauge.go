// Package gauge measures the processor time and memory of processes on this machine, from /proc.
package gauge

import (
	"slices"
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
		return 0, err
	}
	status, err := process.NewStatus()
	if err != nil {
		return 0, err
	}
	return status.VmHWM, nil
}

// TreeCPU returns the processor time of a server with child processes, such as Postgres: of the server, of children
// that have ended, and of running children except those in except, which must still run.
func TreeCPU(pid int, except []int) (total time.Duration, err error) {
	server, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	ticks := server.UTime + server.STime + uint(server.CUTime+server.CSTime)
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, process := range processes {
		stat, err := process.Stat()
		if err == nil && stat.PPID == pid && !slices.Contains(except, stat.PID) { // it may have ended meanwhile
			ticks += stat.UTime + stat.STime
		}
	}
	return time.Duration(ticks) * tick, nil
}

func readStat(pid int) (stat procfs.ProcStat, err error) {
	process, err := procfs.NewProc(pid)
	if err == nil {
		stat, err = process.Stat()
	}
	return stat, err
}
