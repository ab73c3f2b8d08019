package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Way is how a server is provided.
type Way string

// The ways, in the order in which they are tried.
const (
	Environment Way = "environment"
	Containers  Way = "containers"
	Local       Way = "local"
)

// The environment variables that this package reads and passes on.
const (
	EnvWay         = "CDC_RELAY_SERVICES"       // environment, containers or local
	EnvDatabase    = "CDC_RELAY_DATABASE_URL"   // its user may create databases
	EnvAMQP        = "CDC_RELAY_AMQP_URL"       // a broker
	EnvState       = "CDC_RELAY_SERVICES_STATE" // a file that says how to control the broker
	EnvInstall     = "CDC_RELAY_INSTALL"        // 0: install nothing
	EnvPostgresBin = "CDC_RELAY_PG_BIN"         // the folder with initdb and postgres

	EnvPostgresImage = "CDC_RELAY_TEST_POSTGRES_IMAGE" // the image of containers
	EnvRabbitMQImage = "CDC_RELAY_TEST_RABBITMQ_IMAGE"
)

// Options say how to provide a server. The zero value takes the first way that works.
type Options struct {
	// Way is the only way to try. The default is CDC_RELAY_SERVICES, or else all ways.
	Way Way
	// Private asks for an own server, which may be stopped and configured. It always runs from this machine's programs.
	Private bool
	// Settings are added to the server's own: "name=value" for Postgres, lines of rabbitmq.conf for RabbitMQ.
	Settings []string
	// SignalLeader makes [Run] send signals only to its command, for a command that stops its children itself.
	// Otherwise they go to all processes of the command, as a terminal would send them.
	SignalLeader bool
	// Log receives a line for each step that takes long, such as an installation. The default is standard error.
	Log func(line string)
}

func (o Options) log(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if o.Log != nil {
		o.Log(line)
		return
	}
	fmt.Fprintln(os.Stderr, line)
}

// provider provides a server in one way. It returns errUnavailable if that way does not work on this machine.
type provider[T any] func(ctx context.Context, opts Options) (T, error)

// errUnavailable: try the next way.
var errUnavailable = errors.New("not available")

func provide[T any](ctx context.Context, opts Options, ways map[Way]provider[T]) (T, error) {
	var none T
	order, err := order(opts)
	if err != nil {
		return none, err
	}
	var failed []error
	for _, way := range order {
		server, err := ways[way](ctx, opts)
		if err == nil {
			return server, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", way, err))
		if !errors.Is(err, errUnavailable) {
			break
		}
	}
	return none, errors.Join(failed...)
}

func order(opts Options) ([]Way, error) {
	if opts.Private {
		return []Way{Local}, nil
	}
	way := cmp.Or(opts.Way, Way(os.Getenv(EnvWay)))
	if opts.Way == "" && os.Getenv(EnvState) != "" {
		way = Environment // another process has started the server and shares it
	}
	switch way {
	case "":
		return []Way{Environment, Containers, Local}, nil
	case Environment, Containers, Local:
		return []Way{way}, nil
	default:
		return nil, fmt.Errorf("%s is %q: it must be %s, %s or %s", EnvWay, way, Environment, Containers, Local)
	}
}

// missingError is the message for a machine on which no way works.
type missingError struct {
	server   string // for people
	packages string // of Debian and Ubuntu
	formula  string // of Homebrew
}

func (e *missingError) Error() string {
	return fmt.Sprintf(`no %s to run against. One of these helps:
  Docker:         start the Docker engine (not for tests that stop or configure a server)
  Debian, Ubuntu: sudo apt-get install -y --no-install-recommends %s
  macOS:          brew install %s
  a running one:  export %s=postgres://… %s=amqp://…`, e.server, e.packages, e.formula, EnvDatabase, EnvAMQP)
}

// Is makes errors.Is(err, errUnavailable) true.
func (e *missingError) Is(target error) bool { return target == errUnavailable }

// find looks for a program, and installs it if that needs no question.
func find(ctx context.Context, opts Options, look func() (string, error)) (string, error) {
	path, err := look()
	var missing *missingError
	if !errors.As(err, &missing) || os.Geteuid() != 0 || os.Getenv(EnvInstall) == "0" {
		return path, err
	}
	if _, noApt := exec.LookPath("apt-get"); noApt != nil {
		return "", err
	}
	opts.log("%s is not installed: installing %s with apt-get", missing.server, missing.packages)
	if err := install(ctx, strings.Fields(missing.packages)); err != nil {
		return "", errors.Join(err, missing)
	}
	return look()
}

// install holds a lock: the tests of several packages may install at the same time, and apt-get waits for others when
// it installs, but not when it updates its lists. The scripts use the same lock.
func install(ctx context.Context, packages []string) error {
	const lock, wait = "/var/cache/apt", "DPkg::Lock::Timeout=300"
	for _, args := range [][]string{
		{"-q", "-o", wait, "update"},
		append([]string{"-q", "-o", wait, "install", "-y", "--no-install-recommends"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, "flock", append([]string{lock, "apt-get"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
		}
	}
	return nil
}
