package services

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

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
