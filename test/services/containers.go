package services

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// Limits for an engine to answer, and to fetch an image. Beyond them, the next way is quicker.
const (
	pingTimeout = 5 * time.Second
	pullTimeout = 3 * time.Minute
)

// image is the image of a server's containers: the one that a variable of the environment names, or else the local one
// if the engine has it, or else the public one. Images made by scripts/images have names that no registry has.
type image struct{ variable, local, public string }

var (
	postgresImage = image{EnvPostgresImage, "cdc-relay/test-postgres:17", "postgres:17"}
	rabbitmqImage = image{EnvRabbitMQImage, "cdc-relay/test-rabbitmq:4", "rabbitmq:4-management"}
)

// engine connects to the Docker engine that testcontainers finds.
func engine(ctx context.Context) (*testcontainers.DockerClient, error) {
	shared.containers.Do(func() {
		// The helper container Ryuk removes containers of killed tests, but needs its own image. sweep does the same
		// here.
		if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
			_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
		}
		log.SetDefault(quiet{}) // testcontainers would print a description of the engine
	})
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err == nil {
		_, err = docker.Ping(ctx, client.PingOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("no Docker engine answers (%w): %w", err, errUnavailable)
	}
	return docker, nil
}

// names returns the names of the image, the best first.
func (i image) names() []string {
	if chosen := os.Getenv(i.variable); chosen != "" {
		return []string{chosen}
	}
	return []string{i.local, i.public}
}

// choose returns the image to use, and pulls it if necessary.
func (i image) choose(ctx context.Context, docker *testcontainers.DockerClient, opts Options) (string, error) {
	names := i.names()
	for _, name := range names {
		if _, err := docker.ImageInspect(ctx, name); err == nil {
			return name, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	name := names[len(names)-1]
	opts.log("pulling %s", name)
	pull, err := docker.ImagePull(ctx, name, client.ImagePullOptions{})
	if err == nil {
		err = pull.Wait(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("the engine does not have %s and cannot pull it (%w): %w", name, err, errUnavailable)
	}
	return name, nil
}

// containerHost is the address where the engine publishes ports: the engine's host, or this machine. Inside a
// container, testcontainers would use a gateway address that may not answer.
func containerHost(docker *testcontainers.DockerClient) string {
	if address, err := url.Parse(docker.DaemonHost()); err == nil && address.Scheme == "tcp" {
		return cmp.Or(os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"), address.Hostname())
	}
	return cmp.Or(os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"), "127.0.0.1")
}

// ports publishes container ports on fixed ports of the host. An engine would pick different ports at each start.
func ports(host string, inside ...int) (outside []int, bindings network.PortMap, err error) {
	bindings = network.PortMap{}
	address := netip.IPv4Unspecified()
	if host == "127.0.0.1" {
		address = netip.MustParseAddr(host)
	}
	for _, port := range inside {
		free, err := freePort()
		if err != nil {
			return nil, nil, err
		}
		key, err := network.ParsePort(strconv.Itoa(port) + "/tcp")
		if err != nil {
			return nil, nil, err
		}
		outside = append(outside, free)
		bindings[key] = []network.PortBinding{{HostIP: address, HostPort: strconv.Itoa(free)}}
	}
	return outside, bindings, nil
}

func containerPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	command := []string{"postgres"}
	for _, setting := range postgresSettings(opts.Settings) {
		// The image must listen where the container's ports are published, and initialises itself over its Unix socket.
		if !strings.HasPrefix(setting, "listen_addresses=") && !strings.HasPrefix(setting, "unix_socket_directories=") {
			command = append(command, "-c", setting)
		}
	}
	request := testcontainers.ContainerRequest{
		Cmd: command,
		Env: map[string]string{"POSTGRES_PASSWORD": postgresPassword},
	}
	host, outside, run, err := newContainer(ctx, opts, postgresImage, request, 5432)
	if err != nil {
		return nil, err
	}
	return &Postgres{server: server{address: postgresAddress(host, outside[0]), runner: run, Way: Containers}}, nil
}

func containerRabbitMQ(ctx context.Context, opts Options) (*RabbitMQ, error) {
	settings := append([]string{
		"management_agent.disable_metrics_collector = true", "disk_free_limit.absolute = 50MB", "log.console = true",
	}, opts.Settings...)
	request := testcontainers.ContainerRequest{
		Files: []testcontainers.ContainerFile{{
			Reader:            strings.NewReader(strings.Join(settings, "\n") + "\n"),
			ContainerFilePath: "/etc/rabbitmq/conf.d/90-cdc-relay.conf",
			FileMode:          0o644,
		}},
		// Erlang reserves memory for every file that it may open, and some engines allow a billion: +Q limits that.
		Env: map[string]string{
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none +Q 65536",
		},
	}
	host, outside, run, err := newContainer(ctx, opts, rabbitmqImage, request, 5672, 15672)
	if err != nil {
		return nil, err
	}
	return &RabbitMQ{
		server: server{address: rabbitAddress(host, outside[0]), runner: run, Way: Containers},
		manage: managementAt(host, outside[1]),
	}, nil
}

// newContainer creates a container without starting it.
func newContainer(
	ctx context.Context, opts Options, from image, request testcontainers.ContainerRequest, inside ...int,
) (host string, outside []int, server *contained, err error) {
	docker, err := engine(ctx)
	if err != nil {
		return "", nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = docker.Close()
		}
	}()
	if request.Image, err = from.choose(ctx, docker, opts); err != nil {
		return "", nil, nil, err
	}
	host = containerHost(docker)
	outside, bindings, err := ports(host, inside...)
	if err != nil {
		return "", nil, nil, err
	}
	sweep(ctx, docker)
	request.Labels = map[string]string{ownerLabel: owner()}
	request.HostConfigModifier = func(config *container.HostConfig) {
		config.PortBindings = bindings
	}
	for key := range bindings {
		request.ExposedPorts = append(request.ExposedPorts, key.String())
	}
	made, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{
		ContainerRequest: request, Logger: quiet{},
	})
	if err != nil {
		return "", nil, nil, fmt.Errorf("make a container of %s: %w", request.Image, err)
	}
	return host, outside, &contained{docker: docker, id: made.GetContainerID()}, nil
}

// quiet drops the log of testcontainers. Errors are returned in any case.
type quiet struct{}

var _ log.Logger = quiet{}

// Printf drops the line.
func (quiet) Printf(string, ...any) {}

// readLog returns the end of a container's log.
func readLog(ctx context.Context, docker *testcontainers.DockerClient, id string) string {
	logs, err := docker.ContainerLogs(ctx, id,
		client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "40"})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = logs.Close() }()
	text, err := demultiplex(logs)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(text)
}

func demultiplex(stream io.Reader) (string, error) {
	var text strings.Builder
	_, err := stdcopy.StdCopy(&text, &text, stream)
	return text.String(), err
}
