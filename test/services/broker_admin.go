package services

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Permissions are regular expressions for the names that a user may configure, write to and read from in a virtual
// host. An empty expression permits nothing.
type Permissions struct {
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// AllPermissions permits everything.
func AllPermissions() Permissions {
	return Permissions{Configure: ".*", Write: ".*", Read: ".*"}
}

// Policy sets arguments of the queues or exchanges with matching names.
type Policy struct {
	Pattern    string         `json:"pattern"` // a regular expression for names
	ApplyTo    string         `json:"apply-to"`
	Definition map[string]any `json:"definition"` // such as {"max-length": 1, "overflow": "reject-publish"}
	Priority   int            `json:"priority"`   // if several match, the highest applies
}

// ApplyToQueues is a value of [Policy.ApplyTo]; "exchanges" is another one.
const ApplyToQueues = "queues"

// AddVHost creates a virtual host in which the user of URL has all permissions. The second call gives them: only some
// versions give them to the creator.
func (r *RabbitMQ) AddVHost(ctx context.Context, name string) error {
	if err := r.manage.put(ctx, struct{}{}, "vhosts", name); err != nil {
		return err
	}
	return r.Permit(ctx, name, r.address.User.Username(), AllPermissions())
}

// DeleteVHost removes a virtual host with its content, and closes the connections to it.
func (r *RabbitMQ) DeleteVHost(ctx context.Context, name string) error {
	return r.manage.remove(ctx, "vhosts", name)
}

// AddUser creates a user without permissions, or changes its password.
func (r *RabbitMQ) AddUser(ctx context.Context, name, password string) error {
	user := map[string]string{"password": password, "tags": ""}
	return r.manage.put(ctx, user, "users", name)
}

// Permit replaces a user's permissions in a virtual host. Open channels keep the permissions that they have used, until
// they are closed or [RabbitMQ.ForgetPermissions] is called.
func (r *RabbitMQ) Permit(ctx context.Context, vhost, user string, permissions Permissions) error {
	return r.manage.put(ctx, permissions, "permissions", vhost, user)
}

// ForgetPermissions makes all open channels look their permissions up again, as an
// authentication backend with a cache does when entries expire.
func (r *RabbitMQ) ForgetPermissions(ctx context.Context) error {
	const program = `Forget = fun(State) -> put(permission_cache, []), put(topic_permission_cache, []), State end,
		[catch sys:replace_state(P, Forget) || P <- rabbit_channel:list_local()], ok.`
	_, err := r.eval(ctx, program)
	return err
}

// SetPolicy creates or replaces a policy of a virtual host.
func (r *RabbitMQ) SetPolicy(ctx context.Context, vhost, name string, policy Policy) error {
	return r.manage.put(ctx, policy, "policies", vhost, name)
}

// DeletePolicy removes a policy of a virtual host.
func (r *RabbitMQ) DeletePolicy(ctx context.Context, vhost, name string) error {
	return r.manage.remove(ctx, "policies", vhost, name)
}

// Definitions are the queues, declared exchanges, bindings and policies of a virtual host, without the messages.
type Definitions struct {
	Queues, Exchanges []string // names

	all json.RawMessage
}

// Definitions reads the definitions of a virtual host.
func (r *RabbitMQ) Definitions(ctx context.Context, vhost string) (*Definitions, error) {
	content, err := r.manage.call(ctx, http.MethodGet, nil, "definitions", vhost)
	if err != nil {
		return nil, err
	}
	type named []struct {
		Name string `json:"name"`
	}
	var read struct{ Queues, Exchanges named }
	if err := json.Unmarshal(content, &read); err != nil {
		return nil, fmt.Errorf("read the definitions of %s: %w", vhost, err)
	}
	names := func(list named) (names []string) {
		for _, one := range list {
			names = append(names, one.Name)
		}
		return names
	}
	return &Definitions{Queues: names(read.Queues), Exchanges: names(read.Exchanges), all: content}, nil
}

// Restore creates the missing parts of the definitions again.
func (r *RabbitMQ) Restore(ctx context.Context, vhost string, definitions *Definitions) error {
	_, err := r.manage.call(ctx, http.MethodPost, definitions.all, "definitions", vhost)
	return err
}

// Flush writes metadata to disk. The broker keeps changes of queues and bindings in memory for up to two seconds;
// SIGKILL would lose them.
func (r *RabbitMQ) Flush(ctx context.Context) error {
	_, err := r.eval(ctx, "mnesia:sync_log().")
	return err
}

// DeleteExchange removes an exchange with its bindings.
func (r *RabbitMQ) DeleteExchange(ctx context.Context, vhost, name string) error {
	return r.manage.remove(ctx, "exchanges", vhost, name)
}

// Unsettled counts the messages of a virtual host that are in a queue, delivered and not acknowledged, or published and
// not confirmed. The count of a quorum queue is up to five seconds old.
func (r *RabbitMQ) Unsettled(ctx context.Context, vhost string) (int, error) {
	const program = `Sum = fun(L) -> lists:sum([N || N <- L, is_integer(N)]) end,
		Queued = [proplists:get_value(messages, rabbit_amqqueue:info(Q, [messages]))
			|| Q <- rabbit_amqqueue:list(%[1]s)],
		Of = fun(C) -> case catch rabbit_channel:info(C, [vhost, messages_unconfirmed]) of
			[{vhost, %[1]s}, {messages_unconfirmed, N}] -> N; _ -> 0 end end,
		Sum(Queued) + Sum([Of(C) || C <- rabbit_channel:list()]).`
	return r.count(ctx, fmt.Sprintf(program, erlangText(vhost)))
}

// RaiseMemoryAlarm sets the memory limit so low that the broker blocks every publishing connection. It returns when the
// alarm is on.
func (r *RabbitMQ) RaiseMemoryAlarm(ctx context.Context) error {
	return r.setMemoryLimit(ctx, `{absolute, "1MB"}`, true)
}

// ClearMemoryAlarm ends RaiseMemoryAlarm. It restores the limit of the configuration.
func (r *RabbitMQ) ClearMemoryAlarm(ctx context.Context) error {
	return r.setMemoryLimit(ctx, `element(2, application:get_env(rabbit, vm_memory_high_watermark))`, false)
}

// setMemoryLimit uses eval: rabbitmqctl cannot restore a limit, and would need a second run to read the alarm.
func (r *RabbitMQ) setMemoryLimit(ctx context.Context, limit string, wantAlarm bool) error {
	const program = `vm_memory_monitor:set_vm_memory_high_watermark(%s),
		lists:any(fun({{resource_limit, memory, N}, _}) -> N =:= node(); (_) -> false end, rabbit_alarm:get_alarms()).`
	alarm, err := r.eval(ctx, fmt.Sprintf(program, limit))
	if err == nil && alarm != strconv.FormatBool(wantAlarm) {
		err = fmt.Errorf("set the memory limit: there is an alarm: %s, want %t", alarm, wantAlarm)
	}
	return err
}

// CloseConnections closes the AMQP connections with a client name that begins with nameBegins, or all if it is empty.
// It returns how many it closed.
func (r *RabbitMQ) CloseConnections(ctx context.Context, nameBegins, reason string) (int, error) {
	const program = `Begins = fun(P) ->
			Properties = case catch rabbit_reader:info(P, [client_properties]) of
				[{_, L}] when is_list(L) -> L; _ -> [] end,
			Name = case lists:keyfind(<<"connection_name">>, 1, Properties) of {_, _, N} -> N; false -> <<>> end,
			string:prefix(Name, %s) =/= nomatch
		end,
		length([rabbit_networking:close_connection(P, %s) || P <- rabbit_networking:local_connections(), Begins(P)]).`
	return r.count(ctx, fmt.Sprintf(program, erlangText(nameBegins), erlangText(reason)))
}

// eval returns the value of an Erlang program that the broker runs.
func (r *RabbitMQ) eval(ctx context.Context, program string) (string, error) {
	output, err := r.Ctl(ctx, "eval", program)
	return strings.TrimSpace(output), err
}

func (r *RabbitMQ) count(ctx context.Context, program string) (int, error) {
	output, err := r.eval(ctx, program)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(output)
}

func erlangText(text string) string {
	return "<<" + strconv.Quote(text) + "/utf8>>"
}

// Upgrade runs a step of rabbitmq-upgrade. "drain" closes client connections and hands queue leaders to other nodes;
// "revive", or a restart, ends that. "await_online_quorum_plus_one" waits until every quorum queue can lose this node.
func (r *RabbitMQ) Upgrade(ctx context.Context, step string) error {
	_, err := r.tools.run(ctx, "rabbitmq-upgrade", step)
	return err
}

// management is the broker's HTTP API. It creates a virtual host in milliseconds; rabbitmqctl takes seconds.
type management struct {
	URL string `json:"url"` // with user and password
}

func managementAt(host string, port int) management {
	address := url.URL{
		Scheme: "http",
		User:   url.UserPassword("guest", "guest"),
		Host:   net.JoinHostPort(host, strconv.Itoa(port)),
	}
	return management{URL: address.String()}
}

// call sends a body and returns the answer. Its errors name the call. It keeps no connection open: an idle one would be
// reported as a leak.
func (m management) call(ctx context.Context, method string, body any, path ...string) ([]byte, error) {
	if m.URL == "" {
		return nil, errors.New("this broker has no management API that is known here")
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	address := "/api"
	for _, element := range path {
		address += "/" + url.PathEscape(element)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, m.URL+address, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		return nil, fmt.Errorf("%s %s: %s: %s", method, address, response.Status, text)
	}
	return io.ReadAll(response.Body)
}

func (m management) put(ctx context.Context, body any, path ...string) error {
	_, err := m.call(ctx, http.MethodPut, body, path...)
	return err
}

func (m management) remove(ctx context.Context, path ...string) error {
	_, err := m.call(ctx, http.MethodDelete, nil, path...)
	return err
}

// tools says how to run the programs of a broker, such as rabbitmqctl. The zero value is for a broker that is known
// only by its address.
type tools struct {
	Container string `json:"container,omitempty"` // where they run

	// These are for programs of this machine.
	Scripts string   `json:"scripts,omitempty"` // their folder
	Env     []string `json:"env,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	Account account  `json:"account"`
}

func (t tools) run(ctx context.Context, args ...string) (string, error) {
	var cmd *exec.Cmd
	switch {
	case t.Container != "":
		cmd = exec.CommandContext(ctx, "docker", append([]string{"exec", t.Container}, args...)...)
	case t.Scripts != "":
		cmd = exec.CommandContext(ctx, filepath.Join(t.Scripts, args[0]), args[1:]...)
		cmd.Env, cmd.Dir = t.Env, t.Dir
		t.Account.assume(cmd)
	default:
		return "", errNotOurs
	}
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return string(output), nil
}

// state describes a broker to other processes, so that they can control it and not only connect.
type state struct {
	Management management `json:"management"`
	Tools      tools      `json:"tools"`
}

// WriteState writes the state to a file. Other processes get the address in CDC_RELAY_AMQP_URL and the name of the file
// in CDC_RELAY_SERVICES_STATE.
func (r *RabbitMQ) WriteState(file string) error {
	content, err := json.MarshalIndent(state{Management: r.manage, Tools: r.tools}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600) // it shows where the cookie is
}

// adopt reads from a state file how to control a broker that another process started.
func (r *RabbitMQ) adopt(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", EnvState, err)
	}
	var described state
	if err := json.Unmarshal(content, &described); err != nil {
		return fmt.Errorf("%s: read %s: %w", EnvState, file, err)
	}
	r.manage, r.tools = described.Management, described.Tools
	return nil
}
