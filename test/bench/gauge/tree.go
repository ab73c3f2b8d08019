package gauge

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/procfs"
)

// TreeCPU returns the processor time of a server with child processes, such as Postgres: of the server, of children
// that
// have ended, and of running children except those in except.
//
// The processes in except must still run.
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
			continue // it ended meanwhile, or is not a child
		}
		total += time.Duration(stat.UTime+stat.STime) * tick
	}
	return total, nil
}
