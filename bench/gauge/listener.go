package gauge

import (
	"fmt"
	"net"
	"strconv"

	"github.com/prometheus/procfs"
)

// tcpListen is the state of a socket that accepts connections, as /proc/net/tcp tells it.
const tcpListen = 0x0a

// Listener is the process of this machine that accepts connections at host:port; 0 where it is not known.
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
	if inode == 0 {
		return 0
	}
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0
	}
	want := fmt.Sprintf("socket:[%d]", inode)
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

func listeningInode(port uint64) uint64 {
	system, err := procfs.NewDefaultFS()
	if err != nil {
		return 0
	}
	v4, _ := system.NetTCP() // one of the two may be missing
	v6, _ := system.NetTCP6()
	for _, line := range append(v4, v6...) {
		if line.St == tcpListen && line.LocalPort == port {
			return line.Inode
		}
	}
	return 0
}
