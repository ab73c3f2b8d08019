// Package services provides the Postgres and RabbitMQ servers that tests, the demo and benchmarks run against.
//
// Servers come from the first of three ways that works, or from the one that CDC_RELAY_SERVICES names:
//
//   - environment: CDC_RELAY_DATABASE_URL and CDC_RELAY_AMQP_URL give the addresses of servers that run already.
//   - containers: a Docker engine answers, and has the image or can pull it.
//   - local: private servers started from the machine's own binaries, on free loopback ports, with their data in a
//     temporary folder, below CDC_RELAY_SERVICES_DIR if that is set. If the process is root on Debian or Ubuntu, it
//     installs missing binaries with apt-get.
//
// Tests take their own database and virtual host from servers that their process shares ([Database], [VHost]), or
// a local server that they may stop, kill and configure ([PrivatePostgres], [PrivateRabbitMQ]). A package that uses any
// of these has a TestMain that calls [Main].
package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"slices"
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

// StartPostgres provides a server and waits until it accepts connections. The caller closes it.
func StartPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	if os.Getenv(EnvPostgresBin) != "" && opts.Way == "" && os.Getenv(EnvState) == "" &&
		Way(os.Getenv(EnvWay)) != Containers {
		opts.Way = Local // nothing else uses the programs that were named
	}
	if !opts.Private {
		// Tests create and drop slots all the time. Postgres computes without a lock which WAL the slots need, so a
		// checkpoint sometimes removes a segment that one of them still needs (ReplicationSlotsComputeRequiredLSN).
		opts.Settings = append(slices.Clip(opts.Settings), "wal_keep_size=256MB")
	}
	server, err := provide(ctx, opts, map[Way]provider[*Postgres]{
		Environment: givenPostgres, Containers: containerPostgres, Local: localPostgres,
	})
	if err != nil {
		return nil, fmt.Errorf("provide postgres: %w", err)
	}
	if err := server.Start(ctx); err != nil {
		return nil, errors.Join(err, server.Close(context.WithoutCancel(ctx)))
	}
	return server, nil
}

// StartRabbitMQ provides a broker and waits until it accepts connections. The caller closes it.
func StartRabbitMQ(ctx context.Context, opts Options) (*RabbitMQ, error) {
	server, err := provide(ctx, opts, map[Way]provider[*RabbitMQ]{
		Environment: givenRabbitMQ, Containers: containerRabbitMQ, Local: localRabbitMQ,
	})
	if err != nil {
		return nil, fmt.Errorf("provide rabbitmq: %w", err)
	}
	if err := server.Start(ctx); err != nil {
		return nil, errors.Join(err, server.Close(context.WithoutCancel(ctx)))
	}
	return server, nil
}

// given reads an address from the environment. Its errors do not quote the value, which may contain a password.
func given(variable string) (*url.URL, error) {
	text := os.Getenv(variable)
	if text == "" {
		return nil, fmt.Errorf("%s is not set: %w", variable, errUnavailable)
	}
	address, err := url.Parse(text)
	if err != nil || address.Host == "" {
		return nil, fmt.Errorf("%s is not a URL with a host", variable)
	}
	return address, nil
}

func givenPostgres(context.Context, Options) (*Postgres, error) {
	address, err := given(EnvDatabase)
	if err != nil {
		return nil, err
	}
	return &Postgres{server: server{address: address, Way: Environment}}, nil
}

func givenRabbitMQ(context.Context, Options) (*RabbitMQ, error) {
	address, err := given(EnvAMQP)
	if err != nil {
		return nil, err
	}
	broker := &RabbitMQ{server: server{address: address, Way: Environment}}
	if file := os.Getenv(EnvState); file != "" {
		if err := broker.adopt(file); err != nil {
			return nil, err
		}
	}
	return broker, nil
}
