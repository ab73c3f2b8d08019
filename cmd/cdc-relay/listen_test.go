package main

import (
	"net"
	"strings"
	"testing"
)

// The relay and the console have addresses of their own, also with the same variables and the same file. A port in use
// shows which address a command takes.
func TestRunAndConsoleListenWhereTheyAreTold(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	used := listener.Addr().String()
	const free = "127.0.0.1:0"
	for _, test := range []struct {
		command string
		env     environment
		file    string
		args    string
	}{
		{command: "run", args: "--listen USED"},
		{command: "run", args: "--http-addr USED"},
		{command: "run", env: environment{"CDC_RELAY_HTTP_ADDR": "USED"}},
		{command: "run", file: "http-addr: USED\nconsole-listen: FREE\n"},
		{command: "run", env: environment{"CDC_RELAY_HTTP_ADDR": "FREE", "CDC_RELAY_CONSOLE_LISTEN": "FREE"}, args: "--listen USED"},
		{command: "console", args: "--listen USED"},
		{command: "console", args: "--console-listen USED"},
		{command: "console", env: environment{"CDC_RELAY_CONSOLE_LISTEN": "USED"}},
		{command: "console", file: "http-addr: FREE\nconsole-listen: USED\n"},
		{command: "console", file: "console-listen: FREE\n", args: "--listen USED"},
	} {
		name := test.command + " " + test.args + " " + strings.Join(test.env.pairs(), " ") + " " + test.file
		fill := strings.NewReplacer("USED", used, "FREE", free)
		env := environment{
			"CDC_RELAY_DATABASE_URL": "postgres://127.0.0.1:1/shop", "CDC_RELAY_AMQP_URL": "amqp://127.0.0.1:1",
			"CDC_RELAY_LOG_FORMAT": "text",
		}
		for variable, text := range test.env {
			env[variable] = fill.Replace(text)
		}
		file := writeFile(t, "relay.yaml", fill.Replace(test.file))
		if test.file != "" {
			env["CDC_RELAY_CONFIG"] = file
		}
		r := cdcRelay(t, env, append([]string{test.command}, strings.Fields(fill.Replace(test.args))...)...)
		if r.code != exitFailed || !strings.Contains(r.stderr, "--listen: listen tcp "+used) {
			t.Errorf("%s: got %d and %s", name, r.code, r.stderr)
		}
	}
}
