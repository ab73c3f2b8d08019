package services

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// findPostgres returns the folder with initdb and postgres.
func findPostgres() (string, error) {
	if folder := os.Getenv(EnvPostgresBin); folder != "" {
		if !postgresIn(folder) {
			return "", fmt.Errorf("%s: there is no initdb and postgres in the folder %s", EnvPostgresBin, folder)
		}
		return folder, nil
	}
	var folders []string
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin", "/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		matches, _ := filepath.Glob(pattern)
		slices.SortFunc(matches, func(a, b string) int { return digits(b) - digits(a) }) // newest first
		folders = append(folders, matches...)
	}
	for _, folder := range folders {
		if postgresIn(folder) {
			return folder, nil
		}
	}
	return "", &missingError{server: "Postgres", packages: "postgresql", formula: "postgresql@17"}
}

func postgresIn(folder string) bool {
	return executable(filepath.Join(folder, "initdb")) && executable(filepath.Join(folder, "postgres"))
}

// digits returns the first number in a path: the version, in the folders searched.
func digits(path string) int {
	start := strings.IndexAny(path, "0123456789")
	if start < 0 {
		return 0
	}
	end := start
	for end < len(path) && path[end] >= '0' && path[end] <= '9' {
		end++
	}
	n, _ := strconv.Atoi(path[start:end])
	return n
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() && info.Mode().Perm()&0o111 != 0
}

// site holds the programs and the data folder of a local server.
type site struct {
	bin, folder, data string
	port              int
	who               account
}

// localPostgres prepares a private server without starting it.
func localPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	bin, err := find(ctx, opts, findPostgres)
	if err != nil {
		return nil, err
	}
	who, err := serverAccount("postgres")
	if err != nil {
		return nil, err
	}
	server, err := (&site{bin: bin, who: who}).another(opts.Settings)
	if err != nil {
		return nil, err
	}
	if err := initPostgres(ctx, bin, who, server.site.folder); err != nil {
		_ = server.Close(ctx)
		return nil, err
	}
	return server, nil
}

// another prepares a server with the same programs, its own port and its own folder, without data.
func (s *site) another(settings []string) (*Postgres, error) {
	folder, err := s.who.newFolder("postgres")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		_ = os.RemoveAll(folder)
		return nil, err
	}
	at := &site{bin: s.bin, folder: folder, data: filepath.Join(folder, "data"), port: port, who: s.who}
	address := postgresAddress("127.0.0.1", port)
	return &Postgres{
		server: server{address: address, Way: Local, folder: folder, command: at.command(settings)}, site: at,
	}, nil
}

// command returns the command that starts the server with these settings.
func (s *site) command(settings []string) func() *exec.Cmd {
	return func() *exec.Cmd {
		args := []string{"-D", s.data, "-p", strconv.Itoa(s.port)}
		for _, setting := range postgresSettings(settings) {
			args = append(args, "-c", setting)
		}
		return postgresCommand(context.Background(), s.who, s.data, filepath.Join(s.bin, "postgres"), args...)
	}
}

func initPostgres(ctx context.Context, bin string, who account, folder string) error {
	password := filepath.Join(folder, "password")
	if err := os.WriteFile(password, []byte(postgresPassword+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	if err := who.own(password); err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	data := filepath.Join(folder, "data")
	cmd := postgresCommand(ctx, who, data, filepath.Join(bin, "initdb"), "-D", data, "-U", postgresUser,
		"--pwfile="+password, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(output)))
	}
	return nil
}

// postgresCommand removes PG… variables from the environment: they would change what the programs do.
func postgresCommand(ctx context.Context, who account, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + dir, "TMPDIR=" + os.TempDir()}
	who.assume(cmd)
	return cmd
}
