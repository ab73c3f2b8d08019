package services

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
)

// state describes a broker to other processes, so that they can control it and not only connect.
type state struct {
	Management string   `json:"management,omitempty"` // the HTTP API's address
	Container  string   `json:"container,omitempty"`  // where rabbitmqctl runs
	Scripts    string   `json:"scripts,omitempty"`    // the folder of rabbitmqctl, if there is no container
	Env        []string `json:"env,omitempty"`
	Dir        string   `json:"dir,omitempty"`
	Account    account  `json:"account"`
}

// WriteState writes the state to a file. Other processes get the address in CDC_RELAY_AMQP_URL and the name of the file
// in CDC_RELAY_SERVICES_STATE.
func (r *RabbitMQ) WriteState(file string) error {
	described := state{Management: r.manage.URL}
	if describer, ok := r.runner.(interface{ describe(*state) }); ok {
		describer.describe(&described)
	}
	content, err := json.MarshalIndent(described, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600) // it shows where the cookie is
}

// describe saves how to run rabbitmqctl: it starts like any tool of the server.
func (l *local) describe(s *state) {
	cmd := l.tools(context.Background(), "rabbitmqctl")
	s.Scripts, s.Env, s.Dir = cmd.Path, cmd.Env, cmd.Dir
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Credential != nil {
		c := cmd.SysProcAttr.Credential
		s.Account = account{UID: c.Uid, GID: c.Gid, Switch: true}
	}
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
	r.manage = management{URL: described.Management}
	switch {
	case described.Container != "":
		r.runner = adoptedContainer{id: described.Container}
	case described.Scripts != "":
		r.runner = adopted{state: described}
	}
	return nil
}

// adopted runs the tools of a broker that another process started. It cannot stop the broker.
type adopted struct {
	foreign
	state state
}

func (a adopted) tool(ctx context.Context, args ...string) (string, error) {
	tools := &local{tools: func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, a.state.Scripts, args[1:]...)
		cmd.Env, cmd.Dir = a.state.Env, a.state.Dir
		a.state.Account.assume(cmd)
		return cmd
	}}
	return tools.tool(ctx, args...)
}

// describe passes on the state that this process received.
func (a adopted) describe(s *state) { *s = a.state }
