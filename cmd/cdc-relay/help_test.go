package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestHelpShowsAdvancedFlagsLast(t *testing.T) {
	const experts, relays = "ADVANCED FLAGS", "The relays tell the values"
	for command, last := range map[string][2]string{
		"run": {experts, "\n  --max-backoff"}, "drain": {experts, "\n  --max-backoff"}, "teardown": {},
		"stats": {relays, " --on-dead-letter,"}, "explain": {relays, " --max-retries,"},
		"list": {relays, " --on-dead-letter"}, "resend": {relays, " --on-dead-letter"},
	} {
		page := cdcRelay(t, nil, command, "--help").stdout
		for _, heading := range []string{experts, relays} {
			if strings.Contains(page, heading) != (heading == last[0]) {
				t.Errorf("%s: %s is wrong", command, heading)
			}
		}
		at := len(page)
		if last[0] != "" {
			at = strings.Index(page, last[0])
		}
		for _, common := range []string{"--database-url URL", "--help, -h", "--table NAME"} {
			if n := strings.Count(page[:at], "\n  "+common); n != 1 {
				t.Errorf("%s: %s is %d times among the common flags", command, common, n)
			}
		}
		if !strings.Contains(strings.ReplaceAll(page[at:], "\n", " ")+page[at:], last[1]) {
			t.Errorf("%s: %s is not last", command, last[1])
		}
	}
}

// The same flag may mean something else for another command.
func TestHelpDescribesEachFlagForItsCommand(t *testing.T) {
	for usage, commands := range map[string][]string{
		"Serve /livez, /readyz":    {"run", "config show", "config validate"},
		"depending on their state": {"list", "resend", "delete"},
	} {
		found := takers(func(s *settings.Flag) bool { return strings.Contains(s.Usage, usage) })
		slices.Sort(found)
		slices.Sort(commands)
		if !slices.Equal(found, commands) {
			t.Errorf("%q is on the help pages of %v, want %v", usage, found, commands)
		}
	}
}

// The commands are pasted into a shell, with the test's servers in place of localhost.
func TestFirstStepsOfTheHelpPageWork(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"sh", "psql", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	broker := services.SharedRabbitMQ(t)
	if broker.ManagementURL() == "" {
		t.Skip("needs the management API of RabbitMQ")
	}
	env, conn := fresh(t)
	_, text, _ := strings.Cut(appDescription, "FIRST STEPS\n")
	var steps strings.Builder
	for _, line := range regexp.MustCompile(`(?m)^  .*$`).FindAllString(text+"\n"+ownMessage, -1) {
		steps.WriteString(strings.TrimPrefix(line, "  ") + "\n")
	}
	vhost := services.VHost(t)
	uri, err := amqp.ParseURI(vhost)
	must(t, err)
	script := strings.NewReplacer(
		"postgres://user:password@localhost:5432/shop", "'"+env["CDC_RELAY_DATABASE_URL"]+"'",
		"amqp://guest:guest@localhost:5672/", "'"+vhost+"'",
		"http://localhost:15672", broker.ManagementURL(), "guest:guest", uri.Username+":"+uri.Password,
		"%2F", uri.Vhost,
	).Replace(steps.String())

	executable, err := os.Executable()
	must(t, err)
	folder := t.TempDir()
	must(t, os.Symlink(executable, filepath.Join(folder, "cdc-relay")))
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script+"\nread -r _ || true; kill $!; wait $!")
	shell.Env = append(os.Environ(), beMain+"=1", "PATH="+folder+":"+os.Getenv("PATH"))
	for _, name := range []string{"CDC_RELAY_SLOT", "CDC_RELAY_PUBLICATION", "CDC_RELAY_HTTP_ADDR"} {
		shell.Env = append(shell.Env, name+"="+env[name])
	}
	stdin, err := shell.StdinPipe()
	must(t, err)
	var output lockedBuffer
	shell.Stdout, shell.Stderr = &output, &output
	must(t, shell.Start())
	channel := connectToBroker(t, vhost)
	await.Until(t, "the message of one's own is in its queue", func() bool {
		queue, err := channel.QueueDeclarePassive("orders.created", true, false, false, false, nil)
		if err != nil { // it does not exist yet, and RabbitMQ has closed the channel
			channel = connectToBroker(t, vhost)
		}
		return err == nil && queue.Messages == 1
	}, output.String)
	await.Until(t, "its row is deleted", func() bool { return query[int](t, conn, "SELECT count(*)::int FROM outbox") == 0 }, output.String)
	stdin.Close()
	if err := shell.Wait(); err != nil {
		t.Errorf("the shell ended with %v:\n%s", err, output.String())
	}
}

func connectToBroker(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn := services.DialAMQP(t, url)
	channel, err := conn.Channel()
	must(t, err)
	return channel
}

// completers are commands that ask a shell for completions of a command line with an unfinished last word. %s is the
// script.
func completers() map[string]string {
	return map[string]string{
		"bash": `source %s
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
			_cdc_relay
			printf '%%s\n' "${COMPREPLY[@]}"`,
		"zsh": `compdef() { : } ; compadd() { shift; print -l -- ${(M)@:#$current*} } ; _files() { : }
			source %s
			current=${@[-1]} words=("$@") CURRENT=$#
			_cdc_relay`,
		"fish": `source %s; complete -C "$argv"`,
	}
}

// Runs bash, and the other shells if they are installed.
func TestCompletionInEachShell(t *testing.T) {
	executable, err := os.Executable()
	must(t, err)
	folder := t.TempDir()
	program := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\"\n", beMain, executable)
	must(t, os.WriteFile(filepath.Join(folder, "cdc-relay"), []byte(program), 0o755))
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	for shell, line := range completers() {
		t.Run(shell, func(t *testing.T) {
			if _, err := exec.LookPath(shell); err != nil && shell != "bash" {
				t.Skip(err)
			}
			r := cdcRelay(t, nil, "completion", shell)
			want(t, r, exitDone)
			script := writeFile(t, "script", r.stdout)
			for typed, wanted := range map[string][]string{
				"rese":                       {"resend"},
				"vers":                       nil, // --version does the same
				"retr":                       nil, // a former command
				"resend --state re":          {"retrying"},
				"config va":                  {"validate"},
				"run --ma":                   {"--max-backoff", "--max-in-flight", "--max-retries"},
				"run --table x --mode p":     {"poll"},
				"list --reason un":           {"unroutable"},
				"run --events d":             {"dead_lettered"},
				"run --amqp-url x --on-de":   {"--on-dead-letter"},
				"list --state re":            {"retrying"},
				"run --config ":              nil,                     // not --config-…
				"run --publisher exec -- --": nil,                     // arguments of the handler
				"adopt --fr":                 {"--from"},              // a command with subcommands
				"completion ":                {"bash", "fish", "zsh"}, // all shells
			} {
				args := []string{"-c", fmt.Sprintf(line, script), shell}
				if shell == "fish" {
					args = args[:2]
				}
				words := append([]string{"cdc-relay"}, strings.Split(typed, " ")...)
				if shell == "fish" {
					words = []string{strings.Join(words, " ")}
				}
				cmd := exec.CommandContext(t.Context(), shell, append(args, words...)...)
				cmd.Dir = t.TempDir() // an empty folder: no files to suggest
				output, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v\n%s", typed, err, output)
				}
				got := strings.Fields(string(output))
				slices.Sort(got)
				if !slices.Equal(got, wanted) {
					t.Errorf("%q is completed with %q, want %q", typed, got, wanted)
				}
			}
		})
	}
}

func TestManPrintsAManualPage(t *testing.T) {
	r := cdcRelay(t, nil, "man")
	wantOutput(t, r, ".TH CDC-RELAY 1 ", ".SH SYNOPSIS\ncdc-relay COMMAND [FLAGS]\n", ".SH run\n", `--max-in-flight\fP="": Maximum number`, "(default: 2000)", ".SS validate\n")
	if strings.Contains(cdcRelay(t, nil, "--help").stdout, "manual page") {
		t.Error("the help page shows the command for packagers")
	}
}
