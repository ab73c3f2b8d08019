package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ is one running broker.
type RabbitMQ struct {
	server
	manage management // zero if the broker has no management API
	tools  tools
}

func rabbitAddress(host string, port int) *url.URL {
	return &url.URL{
		Scheme: "amqp",
		User:   url.UserPassword("guest", "guest"),
		Host:   net.JoinHostPort(host, strconv.Itoa(port)),
		Path:   "/",
	}
}

// URL returns the address of a virtual host; "" means the one that exists from the start.
func (r *RabbitMQ) URL(vhost string) string {
	address := *r.address
	if vhost != "" {
		address.Path, address.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	}
	return address.String()
}

// ManagementURL returns the address of the HTTP API with user and password, or "" if it is unknown.
func (r *RabbitMQ) ManagementURL() string { return r.manage.URL }

// Ctl runs rabbitmqctl against this broker and returns its output. It takes a second or two.
func (r *RabbitMQ) Ctl(ctx context.Context, args ...string) (string, error) {
	return r.tools.run(ctx, append([]string{"rabbitmqctl"}, args...)...)
}

// EnablePlugin enables a plugin that RabbitMQ comes with. It takes a second or two.
func (r *RabbitMQ) EnablePlugin(ctx context.Context, name string) error {
	_, err := r.tools.run(ctx, "rabbitmq-plugins", "enable", name)
	return err
}

// CanCtl reports whether Ctl works. It does not for a broker known only by its address.
func (r *RabbitMQ) CanCtl() bool { return r.tools.Container != "" || r.tools.Scripts != "" }

// Stop asks the broker to stop and waits until it has ended.
func (r *RabbitMQ) Stop(ctx context.Context) error { return r.end(ctx, syscall.SIGTERM) }

// Start starts a stopped broker with its old port and data, and waits until it accepts connections.
func (r *RabbitMQ) Start(ctx context.Context) error { return r.startReady(ctx, r.connect) }

// Close ends the broker and removes its data. It does nothing to a broker given by the environment.
func (r *RabbitMQ) Close(ctx context.Context) error { return r.close(ctx) }

// connect tests whether the broker is ready: a complete AMQP handshake, and the management API if there is one. It also
// reads the version.
func (r *RabbitMQ) connect(ctx context.Context) error {
	conn, err := amqp.DialConfig(r.URL(""), amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return err
	}
	if version, ok := conn.Properties["version"].(string); ok {
		r.Version = version
	}
	if err := conn.Close(); err != nil {
		return err
	}
	if r.manage.URL == "" {
		return nil
	}
	_, err = r.manage.call(ctx, http.MethodGet, nil, "vhosts")
	return err
}

// rabbitPrograms are the folders of RabbitMQ's scripts and of the Erlang port mapper.
type rabbitPrograms struct {
	scripts string // folder of rabbitmq-server and rabbitmqctl
	epmd    string
}

// findRabbitMQ returns the folder of the scripts themselves. Debian's wrappers would change the user.
func findRabbitMQ() (string, error) {
	folders := []string{
		"/usr/lib/rabbitmq/bin", "/opt/rabbitmq/sbin", "/opt/homebrew/opt/rabbitmq/sbin",
		"/usr/local/opt/rabbitmq/sbin", "/home/linuxbrew/.linuxbrew/opt/rabbitmq/sbin",
	}
	if path, err := exec.LookPath("rabbitmq-server"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	for _, folder := range folders {
		if executable(filepath.Join(folder, "rabbitmq-server")) && executable(filepath.Join(folder, "rabbitmq-env")) {
			return folder, nil
		}
	}
	return "", &missingError{server: "RabbitMQ", packages: "rabbitmq-server", formula: "rabbitmq"}
}

// findEPMD searches the folders where Erlang's packages install the port mapper.
func findEPMD() (string, error) {
	if path, err := exec.LookPath("epmd"); err == nil {
		return path, nil
	}
	patterns := []string{
		"/usr/lib/erlang/bin/epmd", "/opt/homebrew/opt/erlang*/lib/erlang/bin/epmd",
		"/usr/local/opt/erlang*/lib/erlang/bin/epmd",
	}
	if path, err := exec.LookPath("erl"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			root := filepath.Dir(filepath.Dir(path))
			patterns = append(patterns, filepath.Join(root, "bin/epmd"), filepath.Join(root, "erts-*/bin/epmd"))
		}
	}
	for _, pattern := range patterns {
		if matches, _ := filepath.Glob(pattern); len(matches) > 0 {
			return matches[0], nil
		}
	}
	return "", &missingError{server: "Erlang port mapper (epmd)", packages: "erlang-base", formula: "erlang"}
}

// node holds the ports and files of one private broker.
type node struct {
	*RabbitMQ
	name                  string
	amqp, dist, api, epmd int // ports
	home                  string
	programs              rabbitPrograms
	account               account
	cookie                string
	erlang                string // additional arguments of the Erlang machine
}

// newNode finds the programs and creates the folder of a node. Its ports are for AMQP, inter-node traffic, the
// management API and the port mapper. It starts nothing.
func newNode(ctx context.Context, opts Options, ports []int, erlang string) (*node, error) {
	scripts, err := find(ctx, opts, findRabbitMQ)
	if err != nil {
		return nil, err
	}
	epmd, err := find(ctx, opts, findEPMD)
	if err != nil {
		return nil, err
	}
	who, err := serverAccount("rabbitmq")
	if err != nil {
		return nil, err
	}
	folder, err := who.newFolder("rabbitmq")
	if err != nil {
		return nil, err
	}
	n := &node{
		name: "cdc-relay-" + strconv.Itoa(ports[0]) + "@localhost",
		amqp: ports[0], dist: ports[1], api: ports[2], epmd: ports[3], home: filepath.Join(folder, "data"),
		programs: rabbitPrograms{scripts, epmd}, account: who, cookie: cookie(), erlang: erlang,
	}
	command := func() *exec.Cmd { return n.command(filepath.Join(scripts, "rabbitmq-server")) }
	n.RabbitMQ = &RabbitMQ{
		server: server{address: rabbitAddress("127.0.0.1", n.amqp), Way: Local, folder: folder, command: command},
		manage: managementAt("127.0.0.1", n.api),
		tools:  tools{Scripts: scripts, Env: n.environment(), Dir: n.home, Account: who},
	}
	return n, nil
}

// localRabbitMQ prepares a private broker and starts its port mapper, but not the broker. A broker would start a mapper
// that outlives it.
func localRabbitMQ(ctx context.Context, opts Options) (*RabbitMQ, error) {
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	n, err := newNode(ctx, opts, ports, "")
	if err != nil {
		return nil, err
	}
	err = n.writeFiles(opts.Settings)
	if err == nil {
		err = n.startEPMD(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare rabbitmq: %w", err), n.Close(ctx))
	}
	return n.RabbitMQ, nil
}

func (n *node) writeFiles(settings []string) error {
	config := append([]string{
		"listeners.tcp.1 = 127.0.0.1:" + strconv.Itoa(n.amqp),
		"num_acceptors.tcp = 2",
		"management.tcp.ip = 127.0.0.1",
		"management.tcp.port = " + strconv.Itoa(n.api),
		"management_agent.disable_metrics_collector = true", // half of the work of an idle broker
		"disk_free_limit.absolute = 50MB",
		"log.console = true",
		"log.file = false",
	}, settings...)
	files := map[string]string{
		"rabbitmq.conf":   strings.Join(config, "\n") + "\n",
		"enabled_plugins": "[rabbitmq_management].\n",
		"env.conf":        "", // replaces the machine's file
		".erlang.cookie":  n.cookie,
	}
	for name, content := range files {
		path := filepath.Join(n.home, name)
		mode := os.FileMode(0o400)
		if name == "enabled_plugins" {
			mode = 0o600 // for EnablePlugin
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			return err
		}
		if err := n.account.own(path); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) startEPMD(ctx context.Context) error {
	epmd, err := n.startLogged(n.command(n.programs.epmd, "-address", "127.0.0.1", "-port", strconv.Itoa(n.epmd)))
	if err != nil {
		return err
	}
	n.helpers = append(n.helpers, epmd)
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		conn, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(n.epmd))
		if err != nil && epmd.ended.Load() {
			err = backoff.Permanent(fmt.Errorf("epmd ended: %w", err))
		}
		if err == nil {
			_ = conn.Close()
		}
		return struct{}{}, err
	})
	return err
}

func (n *node) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = n.home
	cmd.Env = n.environment()
	n.account.assume(cmd)
	return cmd
}

// environment is the whole environment of the scripts, without settings of the machine's own broker or of this process.
func (n *node) environment() []string {
	in := func(name string) string { return filepath.Join(n.home, name) }
	path := filepath.SplitList(os.Getenv("PATH"))
	for _, folder := range []string{filepath.Dir(n.programs.epmd), "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if !slices.Contains(path, folder) {
			path = append(path, folder)
		}
	}
	return []string{
		"PATH=" + strings.Join(path, string(filepath.ListSeparator)),
		"LANG=C.UTF-8", "LC_ALL=C.UTF-8",
		"HOME=" + n.home,
		"RUNNING_UNDER_SYSTEMD=true", // the script execs the broker, so signals reach it without a shell between
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT=" + strconv.Itoa(n.epmd),
		"ERL_CRASH_DUMP_SECONDS=0",
		"RABBITMQ_NODENAME=" + n.name,
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT=" + strconv.Itoa(n.amqp),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(n.dist),
		"RABBITMQ_BASE=" + n.home,
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"),
		"RABBITMQ_SCHEMA_DIR=" + in("schema"),
		"RABBITMQ_LOG_BASE=" + in("log"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_GENERATED_CONFIG_DIR=" + in("generated"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("enabled_plugins"),
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + in("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=" + in("env.conf"),
		"RABBITMQ_PID_FILE=" + in("pid"),
		// No busy waiting on shared cores.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none" +
			" -kernel inet_dist_use_interface {127,0,0,1}" + n.erlang,
	}
}
