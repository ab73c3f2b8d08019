package gauge

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// Listener returns the process on this machine that listens at host:port; 0: unknown.
func Listener(addr string) int {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	inode := listeningInode(port)
	if inode == "" {
		return 0
	}
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0
	}
	want := "socket:[" + inode + "]"
	for _, process := range processes {
		targets, err := process.FileDescriptorTargets()
		if err != nil {
			continue
		}
		for _, target := range targets {
			if target == want {
				return process.PID
			}
		}
	}
	return 0
}

// listeningInode reads the kernel's table of sockets: "0: 0100007F:1F90 00000000:0000 0A …". The tenth field is the
// inode.
func listeningInode(port uint64) string {
	const stateListen = "0A"
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(table)
		if err != nil {
			continue // one of the two may be missing
		}
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if len(fields) > 9 && fields[3] == stateListen && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				return fields[9]
			}
		}
	}
	return ""
}
