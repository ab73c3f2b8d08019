package gauge

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/procfs"
)

// TreeCPU is the processor time of a server that works in processes of its own, such as Postgres: the server's, that of the
// children that have ended, and that of those that run, but for those in except.
//
// Whose processor time is to be left out must still run.
func TreeCPU(pid int, except []int) (time.Duration, error) {
	server, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	total := time.Duration(server.UTime+server.STime) * tick
	total += time.Duration(server.CUTime+server.CSTime) * tick
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || stat.PPID != pid || slices.Contains(except, stat.PID) {
			continue // ended meanwhile, or none of ours
		}
		total += time.Duration(stat.UTime+stat.STime) * tick
	}
	return total, nil
}

// Parent is the process that started another one, and the name of its program; 0 where there is no such process here.
func Parent(pid int) (parent int, name string) {
	stat, err := readStat(pid)
	if err != nil {
		return 0, ""
	}
	name = Name(stat.PPID)
	if name == "" {
		return 0, ""
	}
	return stat.PPID, name
}

// Name is the name of a process's program, empty where there is no such process here.
func Name(pid int) string {
	stat, err := readStat(pid)
	if err != nil {
		return ""
	}
	return stat.Comm
}
