package services

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

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
