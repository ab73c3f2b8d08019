package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
)

// foreignVariable reports whether a variable has the prefix of settings but is not one: variables of this repository's
// scripts and tests, and those that Kubernetes sets for a Service with a name that begins with cdc-relay.
func foreignVariable(name string) bool {
	return regexp.MustCompile(`^((TEST|SOAK|BENCH)_.*|ALLOW_SKIPS|BINARY|DOCKER_ROOT|EXAMPLES|FUZZTIME|INSTALL|LONG|PG_BIN|SERVICES(_DIR|_STATE)?` +
		`|(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`).MatchString(name)
}

// warning warns of something in the configuration, with advice. A command with a log warns there: what reads the log may
// expect JSON.
type warning func(what, advice string)

func (p *process) warning(c *cli.Context, cfg *config) warning {
	if slices.Contains([]string{"run", "drain", "console"}, c.Command.Name) {
		log := p.logger(cfg)
		return func(what, advice string) { log.Warn(what, "event", event.ConfigWarning, "hint", advice) }
	}
	return func(what, advice string) { fmt.Fprintf(p.terminal.Err, "cdc-relay: warning: %s: %s\n", what, advice) }
}

// warnOfVariables warns of variables that look like settings and have no effect.
func (p *process) warnOfVariables(warn warning) {
	if p.environ == nil {
		return
	}
	const prefix = "CDC_RELAY_"
	var known []string
	forFlags := make(map[string]string)
	for _, s := range slices.Concat(allSettings(), filterSettings(), []*setting{allSetting()}) {
		name := strings.TrimPrefix(s.envName(), prefix)
		if s.flagOnly {
			forFlags[name] = s.name
		} else {
			known = append(known, name)
		}
	}
	var variables []string
	for _, pair := range p.environ() {
		variable, _, _ := strings.Cut(pair, "=")
		name, ours := strings.CutPrefix(variable, prefix)
		if ours && !slices.Contains(known, name) && !foreignVariable(name) {
			variables = append(variables, name)
		}
	}
	slices.Sort(variables)
	for _, name := range variables {
		advice := "it is no setting; docs/configuration.md lists them"
		if flag, ok := forFlags[name]; ok {
			advice = fmt.Sprintf("--%s can only be given as a flag", flag)
		} else if near := nearest(name, known); near != "" {
			advice = "did you mean " + prefix + near + "?"
		}
		warn(prefix+show.Printable(name)+" has no effect", advice)
	}
}
