package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/terminal"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// beMain makes the test binary act as the command, for tests that need a process.
const beMain = "CDC_RELAY_TEST_BE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) == "1" {
		main()
	}
	services.Main(m)
}

type result struct {
	code           int
	stdout, stderr string
}

type environment map[string]string

func (e environment) lookup(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

func (e environment) pairs() []string {
	var pairs []string
	for name, value := range e {
		pairs = append(pairs, name+"="+value)
	}
	return pairs
}

// cdcRelay runs a command in this process until it ends.
func cdcRelay(t *testing.T, env environment, args ...string) result {
	t.Helper()
	return withInput(t, env, "", args...)
}

func withInput(t *testing.T, env environment, input string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := process{
		args:      append([]string{"cdc-relay"}, args...),
		terminal:  terminal.New(strings.NewReader(input), &stdout, &stderr, env["NO_COLOR"] != ""),
		lookupEnv: env.lookup,
		environ:   env.pairs,
	}
	code := p.run(t.Context())
	return result{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

func want(t *testing.T, r result, code int) {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.stdout, r.stderr)
	}
}

// wantError expects exit code 1, and these texts on the standard error.
func wantError(t *testing.T, r result, wanted ...string) {
	t.Helper()
	want(t, r, exitFailed)
	wantTexts(t, r.stderr, wanted...)
}

func wantTexts(t *testing.T, said string, wanted ...string) {
	t.Helper()
	for _, text := range wanted {
		if !strings.Contains(said, text) {
			t.Errorf("not said: %q\n%s", text, said)
		}
	}
}

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }

func wantOutput(t *testing.T, r result, wanted ...string) {
	t.Helper()
	want(t, r, exitDone)
	wantTexts(t, r.stdout, wanted...)
}
