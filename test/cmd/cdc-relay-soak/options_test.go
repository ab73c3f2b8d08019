package main

import (
	"bytes"
	"strings"
	"testing"
)

// call runs the program as a function.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := process{args: append([]string{"cdc-relay-soak"}, args...), stdin: strings.NewReader(""), stdout: &out, stderr: &errs}
	code = p.run(t.Context())
	return code, out.String(), errs.String()
}

// A run without faults would pass, and a run on the user's servers changes them.
func TestARunNeedsItsFaultsAndConsent(t *testing.T) {
	for args, want := range map[string]string{
		"--faults nope-*":    `there is no fault "nope-*"`,
		"--faults relay-*,[": `"[" is not a pattern`,
		"--relay /bin/sh --database-url postgres://u:secret@h/d":           "confirm with --yes",
		"--relay /bin/sh --standby --database-url postgres://u:secret@h/d": "--standby is for a private",
		"--relay /bin/sh --cluster --amqp-url amqp://h/d":                  "--cluster is for private",
		"--subject poller --database-url postgres://h/d":                   "--subject is for private servers",
	} {
		code, _, stderr := call(t, strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, want) || strings.Contains(stderr, "secret") {
			t.Errorf("%s: exit %d, %q, want %q", args, code, stderr, want)
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
