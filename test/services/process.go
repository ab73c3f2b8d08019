package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// errNotRunning is returned for a signal to a server that has ended.
var errNotRunning = errors.New("the server is not running")

// guardScript ends a server if its owner dies, and removes its folder. Only the owner holds the write end of the
// script's input: a line means that the owner has cleaned up itself, the end of input that the owner is dead.
const guardScript = `
trap '' INT TERM HUP
if read -r _; then exit 0; fi
kill -s QUIT -- "-$1" 2>/dev/null && sleep 1
kill -s KILL -- "-$1" 2>/dev/null
rm -rf -- "$2"
`

// process is one run of a server's program. It has its own process group, so Ctrl-C reaches the server only through its
// owner.
type process struct {
	cmd   *exec.Cmd
	guard *exec.Cmd
	word  io.WriteCloser // tells the guard to end
	done  chan struct{}  // closed when the program has ended
	ended atomic.Bool
}

// startProcess starts cmd, and a guard that ends it and removes folder if this process dies first.
func startProcess(cmd *exec.Cmd, folder string) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	err := p.startGuard(folder)
	go p.wait()
	if err != nil {
		_ = p.signalGroup(syscall.SIGKILL)
		<-p.done
		return nil, fmt.Errorf("start the guard of %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *process) startGuard(folder string) error {
	p.guard = exec.Command("/bin/sh", "-c", guardScript, "cdc-relay-guard", strconv.Itoa(p.cmd.Process.Pid), folder)
	p.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.guard.Dir = os.TempDir()
	word, err := p.guard.StdinPipe()
	if err != nil {
		return err
	}
	p.word = word
	if err := p.guard.Start(); err != nil {
		p.guard = nil
		return err
	}
	return nil
}

// wait reaps the program, kills the rest of its process group and dismisses the guard: later the group's number could
// belong to other processes.
func (p *process) wait() {
	_ = p.cmd.Wait() // cmd.ProcessState has the result
	p.ended.Store(true)
	_ = syscall.Kill(-p.pid(), syscall.SIGKILL)
	if p.guard != nil {
		_, _ = io.WriteString(p.word, "done\n")
		_ = p.word.Close()
		_ = p.guard.Wait()
	}
	close(p.done)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal signals only the program itself. cmd.Process knows if the number is still valid.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return errNotRunning
	}
	return nil
}

func (p *process) signalGroup(sig syscall.Signal) error {
	if p.ended.Load() {
		return errNotRunning
	}
	return syscall.Kill(-p.pid(), sig)
}

func (p *process) waitEnd(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s to end: %w", p.cmd.Path, context.Cause(ctx))
	}
}

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

// account is the user that a server runs as. Postgres refuses to run as root, and RabbitMQ's tools expect the user that
// owns its cookie. So root starts each server as the user that the distribution created for it.
type account struct {
	UID, GID uint32
	Switch   bool // false: run as the current user
}

func serverAccount(name string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, candidate := range []string{name, "nobody"} {
		u, err := user.Lookup(candidate)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return account{UID: uint32(uid), GID: uint32(gid), Switch: true}, nil
		}
	}
	return account{}, fmt.Errorf("running as root, and there is no user %s to run the server as", name)
}

func (a account) assume(cmd *exec.Cmd) {
	if !a.Switch {
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: a.UID, Gid: a.GID}}
}

func (a account) own(path string) error {
	if !a.Switch {
		return nil
	}
	return os.Chown(path, int(a.UID), int(a.GID))
}

func (a account) ownAll(folder string) error {
	return filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return a.own(path)
	})
}

// newFolder creates a private folder that the account can reach, with a folder "data" that the account owns.
func (a account) newFolder(kind string) (string, error) {
	parent := cmp.Or(os.Getenv("CDC_RELAY_SERVICES_DIR"), os.TempDir())
	if a.Switch && !reachable(parent) {
		parent = "/tmp"
	}
	folder, err := os.MkdirTemp(parent, "cdc-relay-"+kind+"-")
	if err != nil {
		return "", fmt.Errorf("make a private folder: %w", err)
	}
	data := filepath.Join(folder, "data")
	if err := os.Chmod(folder, 0o711); err == nil {
		err = os.Mkdir(data, 0o700)
		if err == nil {
			err = a.own(data)
		}
		if err == nil {
			return folder, nil
		}
	}
	_ = os.RemoveAll(folder)
	return "", fmt.Errorf("make a private folder below %s: %w", parent, err)
}

// reachable reports whether every user can enter path and the folders above it.
func reachable(path string) bool {
	for {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if parent := filepath.Dir(path); parent != path {
			path = parent
			continue
		}
		return true
	}
}

// The ports are below the ranges that systems use for outgoing connections. Otherwise a client that keeps dialling the
// port of a stopped server could get that port as its own and connect to itself.
const (
	firstPort = 20000
	lastPort  = 31999
)

// freePort returns a loopback port on which nothing listens. It is reserved until the process ends.
func freePort() (int, error) {
	ports, err := freePorts(1)
	if err != nil {
		return 0, err
	}
	return ports[0], nil
}

func freePorts(n int) (ports []int, err error) {
	for range 200 * n {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if isFree(port) && reserve(port) {
			ports = append(ports, port)
		}
	}
	return nil, fmt.Errorf("no %d free loopback ports between %d and %d", n, firstPort, lastPort)
}

func isFree(port int) bool {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	return err == nil && listener.Close() == nil
}

// reserve keeps other processes with this package from using a port while nothing listens there. Otherwise a server
// could find its port taken, and its clients would talk to another server. It binds the UDP port of the same number and
// never closes it.
func reserve(port int) bool {
	sign, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return false
	}
	raw, err := sign.SyscallConn()
	var failed error
	if err == nil {
		err = raw.Control(func(descriptor uintptr) {
			syscall.ForkLock.RLock()
			defer syscall.ForkLock.RUnlock()
			var kept int
			if kept, failed = syscall.Dup(int(descriptor)); failed == nil {
				syscall.CloseOnExec(kept)
			}
		})
	}
	return errors.Join(err, failed, sign.Close()) == nil
}

// FreePort returns a loopback port on which nothing listens, from the range of the servers' ports. No other process
// gets it until this one ends.
func FreePort() (int, error) { return freePort() }
