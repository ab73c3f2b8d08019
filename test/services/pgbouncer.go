package services

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/await"
)

// PgBouncer starts a pooler in front of a database, and returns the URL through it. Settings are lines of its file. It
// skips the test if pgbouncer is not installed.
func PgBouncer(t testing.TB, database, settings string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("pgbouncer is not installed")
	}
	address, err := url.Parse(database)
	Must(t, err)
	who, err := serverAccount("postgres")
	Must(t, err)
	folder, err := who.newFolder("pgbouncer")
	Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	port, err := freePort()
	Must(t, err)
	users, ini := filepath.Join(folder, "users"), filepath.Join(folder, "ini")
	password, _ := address.User.Password()
	Must(t, os.WriteFile(users, fmt.Appendf(nil, "%q %q\n", address.User.Username(), password), 0o600))
	Must(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
auth_type = trust
auth_file = %s
unix_socket_dir =
%s
`, address.Hostname(), address.Port(), port, users, settings), 0o600))
	Must(t, who.own(users))
	Must(t, who.own(ini))
	cmd := exec.Command(program, ini)
	who.assume(cmd)
	Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	address.Host = net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
	await.Until(t, "pgbouncer listens", func() bool {
		conn, err := net.Dial("tcp", address.Host)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return address.String()
}
