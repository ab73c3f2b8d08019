package gauge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// TreeCPU returns the processor time of a server with child processes, such as Postgres: of the server, of children
// that have ended, and of running children except those in except. Part is that of the running children with this word
// in their command line.
//
// The processes in except must still run.
func TreeCPU(pid int, except []int, word string) (total, part time.Duration, err error) {
	server, err := readStat(pid)
	if err != nil {
		return 0, 0, err
	}
	total = time.Duration(server.UTime+server.STime) * tick
	total += time.Duration(server.CUTime+server.CSTime) * tick
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, 0, fmt.Errorf("list processes: %w", err)
	}
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || stat.PPID != pid || slices.Contains(except, stat.PID) {
			continue // it ended meanwhile, or is not a child
		}
		used := time.Duration(stat.UTime+stat.STime) * tick
		total += used
		if line, err := process.CmdLine(); err == nil && slices.ContainsFunc(line, func(s string) bool {
			return strings.Contains(s, word)
		}) {
			part += used
		}
	}
	return total, part, nil
}
