package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
