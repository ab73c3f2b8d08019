package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/soak/fault"
)

// call runs the program as a function.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := process{args: append([]string{"cdc-relay-soak"}, args...), stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
	code = p.run(t.Context())
	return code, out.String(), errs.String()
}

func TestWrongUsageIsReported(t *testing.T) {
	notAProgram := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notAProgram, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		want string
	}{
		{"--rate x", `invalid value "x" for flag -rate`},
		{"--rate 0", "--rate: want a number above 0"},
		{"--rate NaN", "--rate: want a number above 0"},
		{"--nope", "flag provided but not defined: -nope"},
		{"run --nope", "run: flag provided but not defined: -nope"},
		{"soak", `unknown command "soak", want run, list or check`},
		{"--duration 1ms", "--duration: want at least 1s"},
		{"--writers 0", "--writers: want 1"},
		{"--relays 0", "--relays: want 1"},
		{"--backlog -1", "--backlog: want 0"},
		{"--hold 0s", "--hold: want more"},
		{"--pause -1s", "--pause: want 0"},
		{"--overlap 2", "--overlap: want a number from 0 to 1"},
		{"--recover-within 0s", "--recover-within"},
		{"--faults nope-*", `there is no fault "nope-*"`},
		{"--faults relay-*,[", `"[" is not a pattern`},
		{"--relay " + notAProgram, "is not a program"},
		{"--relay /bin/sh --database-url postgres://u:secret@h/d", "confirm with --yes"},
		{"--relay /bin/sh --standby --database-url postgres://u:secret@h/d", "--standby is for a private"},
		{"--relay /bin/sh --cluster --amqp-url amqp://h/d", "--cluster is for private"},
		{"--relay /bin/sh --history /nowhere/at/all", "make the files of the run"},
		{"list more", "list: unexpected argument"},
		{"check", "check: want one FILE"},
		{"check /nowhere", "no such file"},
	} {
		code, _, stderr := call(t, strings.Fields(test.args)...)
		if code != exitUsage || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: exit %d, %q, want %q", test.args, code, stderr, test.want)
		}
		if strings.Contains(stderr, "secret") {
			t.Errorf("%s: a password is shown", test.args)
		}
	}
}

func TestFlagsCanBeSetByVariables(t *testing.T) {
	t.Setenv("CDC_RELAY_SOAK_RECOVER_WITHIN", "never")
	code, _, stderr := call(t, "--plan")
	if code != exitUsage || !strings.Contains(stderr, "CDC_RELAY_SOAK_RECOVER_WITHIN") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestTheSameSeedPrintsTheSamePlan(t *testing.T) {
	code, first, _ := call(t, "--plan", "--seed", "42")
	_, second, _ := call(t, "run", "--seed", "42", "--plan")
	if code != exitPassed || first != second || !strings.HasPrefix(first, "seed 42\n") || strings.Count(first, "\n") < 10 {
		t.Errorf("exit %d:\n%s\n%s", code, first, second)
	}
	if _, out, _ := call(t, "--plan", "--faults", "none"); !strings.HasSuffix(out, "no faults\n") {
		t.Errorf("%q", out)
	}
}

func TestListNamesEveryFault(t *testing.T) {
	code, out, _ := call(t, "list")
	if code != exitPassed {
		t.Errorf("exit %d", code)
	}
	for _, f := range fault.All() {
		if !strings.Contains(out, f.Name+" ") || !strings.Contains(out, f.About) {
			t.Errorf("%s is missing", f.Name)
		}
	}
}

func TestFaultsAreSelectedByPattern(t *testing.T) {
	for list, want := range map[string]int{"": 15, "none": 0, "relay-*": 5, "relay-1, *-1": 3, "*": 15} {
		got, err := selectFaults(list, someFaults())
		if err != nil || len(got) != want {
			t.Errorf("%q: %d faults, %v, want %d", list, len(got), err, want)
		}
	}
}

func TestTheCommandToRepeatARunIsPrinted(t *testing.T) {
	o := &options{seed: 5}
	for args, want := range map[string]string{
		"":                                  "cdc-relay-soak --seed 5",
		"--rate 3":                          "cdc-relay-soak --rate 3 --seed 5",
		"--seed 5 --plan":                   "cdc-relay-soak --seed 5 --plan",
		"-seed=5":                           "cdc-relay-soak -seed=5",
		"--faults relay-* -- --log-level x": "cdc-relay-soak --faults 'relay-*' --seed 5 -- --log-level x",
		"--amqp-url amqp://a:b@c/d":         "cdc-relay-soak --amqp-url 'amqp://a:***@c/d' --seed 5",
	} {
		if got := o.command(append([]string{"x"}, strings.Fields(args)...)); got != want {
			t.Errorf("%q: got %q, want %q", args, got, want)
		}
	}
}
