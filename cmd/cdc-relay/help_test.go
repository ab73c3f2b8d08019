package main

import (
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

func TestHelpOfRunShowsAdvancedFlagsLast(t *testing.T) {
	for command, grouped := range map[string]bool{"run": true, "drain": true, "stats": true, "explain": true, "list": true, "resend": true, "teardown": false} {
		page := cdcRelay(t, nil, command, "--help").stdout
		first, experts, found := strings.Cut(page, "ADVANCED FLAGS")
		if found != grouped || strings.Contains(page, "COMMON FLAGS") != grouped {
			t.Errorf("%s: in two groups: %v", command, found)
		}
		for _, common := range []string{"--database-url URL", "--help, -h", "--table NAME"} {
			if !strings.Contains(first, common) {
				t.Errorf("%s: %s is not among the common flags", command, common)
			}
		}
		if n := strings.Count(page, "\n  --database-url URL"); n != 1 {
			t.Errorf("%s: --database-url is there %d times", command, n)
		}
		advanced := map[string]string{
			"run": "--max-backoff", "drain": "--max-backoff", "stats": "--on-dead-letter", "explain": "--max-retries",
			"list": "--on-dead-letter", "resend": "--on-dead-letter",
		}[command]
		if grouped && !strings.Contains(experts, advanced) {
			t.Errorf("%s: %s is not for experts", command, advanced)
		}
	}
}

// The same flag may mean something else for another command.
func TestHelpDescribesEachFlagForItsCommand(t *testing.T) {
	for usage, commands := range map[string][]string{
		"Serve /livez, /readyz":         {"run", "config show", "config validate"},
		"Ask the relay at this address": {"stats", "keys", "explain", "list", "resend", "delete", "console", "check"},
		"depending on their state":      {"list", "resend", "delete"},
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
