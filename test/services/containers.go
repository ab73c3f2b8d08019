package services

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// Limits for an engine to answer, and to fetch an image and start its container. Beyond them, the next way is quicker.
const (
	pingTimeout      = 5 * time.Second
	containerTimeout = 3 * time.Minute
)

func containerPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	command := []string{"postgres"}
	for _, setting := range postgresSettings(opts.Settings) {
		// The image must listen where the container's ports are published, and initialises itself over its Unix socket.
		if !strings.HasPrefix(setting, "listen_addresses=") && !strings.HasPrefix(setting, "unix_socket_directories=") {
			command = append(command, "-c", setting)
		}
	}
	c, err := startContainer(ctx, cmp.Or(os.Getenv(EnvPostgresImage), "postgres:17"), []string{"5432/tcp"},
		testcontainers.WithCmd(command...),
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": postgresPassword}))
	if err != nil {
		return nil, err
	}
	address := postgresAddress(c.host, c.ports[0])
	return &Postgres{server: server{address: address, remove: c.remove, Way: Containers}}, nil
}

func containerRabbitMQ(ctx context.Context, opts Options) (*RabbitMQ, error) {
	settings := append([]string{
		"management_agent.disable_metrics_collector = true", "disk_free_limit.absolute = 50MB", "log.console = true",
	}, opts.Settings...)
	c, err := startContainer(ctx, cmp.Or(os.Getenv(EnvRabbitMQImage), "rabbitmq:4-management"),
		[]string{"5672/tcp", "15672/tcp"},
		testcontainers.WithFiles(testcontainers.ContainerFile{
			Reader:            strings.NewReader(strings.Join(settings, "\n") + "\n"),
			ContainerFilePath: "/etc/rabbitmq/conf.d/90-cdc-relay.conf",
			FileMode:          0o644,
		}),
		// Erlang reserves memory for every file that it may open, and some engines allow a billion: +Q limits that.
		testcontainers.WithEnv(map[string]string{
			"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none +Q 65536",
		}))
	if err != nil {
		return nil, err
	}
	return &RabbitMQ{
		server: server{address: rabbitAddress(c.host, c.ports[0]), remove: c.remove, Way: Containers},
		manage: managementAt(c.host, c.ports[1]),
		tools:  tools{Container: c.made.GetContainerID()},
	}, nil
}

// contained is a running container, and where its ports can be reached.
type contained struct {
	made  *testcontainers.DockerContainer
	host  string
	ports []int
}

// startContainer starts a container on the Docker engine that testcontainers finds. The engine pulls a missing image.
func startContainer(
	ctx context.Context, image string, ports []string, options ...testcontainers.ContainerCustomizer,
) (*contained, error) {
	host, err := engineHost(ctx)
	if err != nil {
		return nil, fmt.Errorf("no Docker engine answers (%w): %w", err, errUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, containerTimeout)
	defer cancel()
	options = append(options,
		testcontainers.WithExposedPorts(ports...), testcontainers.WithHostConfigModifier(onlyLoopback(host, ports)))
	c := &contained{host: host}
	c.made, err = testcontainers.Run(ctx, image, options...)
	for i := 0; i < len(ports) && err == nil; i++ {
		var port network.Port
		port, err = c.made.MappedPort(ctx, ports[i])
		c.ports = append(c.ports, int(port.Num()))
	}
	if err != nil {
		_ = c.remove(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("no container of %s (%w): %w", image, err, errUnavailable)
	}
	return c, nil
}

var calmTestcontainers = sync.OnceFunc(func() {
	// The helper container Ryuk removes containers of killed tests, but needs its own image.
	if os.Getenv("TESTCONTAINERS_RYUK_DISABLED") == "" {
		_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	}
	log.SetDefault(log.NewNoopLogger()) // otherwise it prints a description of the engine
})

// engineHost returns the address where the engine publishes ports: the engine's host, or this machine. Inside a
// container, testcontainers would use a gateway address that may not answer.
func engineHost(ctx context.Context) (string, error) {
	calmTestcontainers()
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = docker.Close() }()
	if _, err := docker.Ping(ctx, client.PingOptions{}); err != nil {
		return "", err
	}
	host := "127.0.0.1"
	if address, err := url.Parse(docker.DaemonHost()); err == nil && address.Scheme == "tcp" {
		host = address.Hostname()
	}
	return cmp.Or(os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"), host), nil
}

// onlyLoopback publishes the ports of an engine on this machine for this machine only.
func onlyLoopback(host string, ports []string) func(*container.HostConfig) {
	return func(config *container.HostConfig) {
		address, err := netip.ParseAddr(host)
		if err != nil || !address.IsLoopback() {
			return
		}
		config.PortBindings = network.PortMap{}
		for _, port := range ports {
			config.PortBindings[network.MustParsePort(port)] = []network.PortBinding{{HostIP: address}}
		}
	}
}

// remove can be called twice: by a test, and again after all tests.
func (c *contained) remove(ctx context.Context) error {
	return testcontainers.TerminateContainer(c.made, testcontainers.StopContext(ctx), testcontainers.StopTimeout(0))
}
