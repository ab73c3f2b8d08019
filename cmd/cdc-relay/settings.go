package main

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/settings"
	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// setting is a setting of the commands.
type setting = settings.Setting[config]

// allSettings are those that the file can have, in the order of "config show".
func allSettings() []setting {
	return slices.Concat(
		connectionSettings(),
		relaySettings(),
		retrySettings(),
		serviceSettings(),
		commandSettings(),
		lookingSettings(),
		checkSettings(),
		adoptSettings(),
		consoleSettings(),
	)
}

// rowSettings say which rows a command lists or changes, and how. They are flags only, and some have the name of a
// setting of the relay that means something else.
func rowSettings() []setting {
	return slices.Concat(
		filterSettings(),
		copySettings(),
		[]setting{allSetting(), deadLetterSetting(), stateSetting(""), pageSetting(), blockedSetting()},
	)
}

// reader reads the settings from the environment of the process and from the file.
func (p *process) reader() *settings.Reader[config] {
	return &settings.Reader[config]{
		Prefix:    "CDC_RELAY_",
		LookupEnv: p.lookupEnv,
		FileFlag:  "config",
		All:       slices.Concat(allSettings(), rowSettings()),
	}
}

// variable returns the environment variable of a setting.
func variable(name string) string { return (&process{}).reader().Variable(name) }

// asFlags returns settings as the flags of a command.
func asFlags(picked ...setting) []cli.Flag { return settings.Flags((&process{}).reader(), picked...) }

// flags returns the named settings as flags, in the order of the help page.
func flags(names ...string) []cli.Flag {
	return asFlags(settings.Pick(allSettings(), names...)...)
}

// usages are texts for the help page of one command, by the name of the flag.
type usages map[string]string

// describe replaces the usage of flags that mean something else for this command.
func describe(picked []cli.Flag, texts usages) []cli.Flag {
	for _, f := range settings.FlagsOf(picked) {
		if text, ok := texts[f.Name]; ok {
			f.Usage = text
		}
	}
	return picked
}

// resolve reads the settings of a command without arguments.
func (p *process) resolve(c *cli.Context) (*config, error) {
	if c.Args().Present() {
		return nil, unexpected(c)
	}
	return p.settingsFor(c)
}

// resolveValid does the same as resolve, and checks the settings together.
func (p *process) resolveValid(c *cli.Context) (*config, error) {
	cfg, err := p.resolve(c)
	if err != nil {
		return nil, err
	}
	return cfg, cfg.validate()
}

// settingsFor does the same as resolve for commands that accept arguments. With mistakes in values, it returns them and
// the other settings; without the file, no settings.
func (p *process) settingsFor(c *cli.Context) (*config, error) {
	cfg := defaultConfig()
	reader := p.reader()
	in, err := reader.Read(c.Command.Flags, cfg)
	if in == nil {
		return nil, mistake(err)
	}
	cfg.given = in.Values
	p.address = cfg.database()
	for _, f := range settings.FlagsOf(c.Command.Flags) {
		cfg.flags = append(cfg.flags, f.Name)
	}
	p.warn(c, cfg, reader, in)
	if slices.ContainsFunc(c.Command.Flags, func(f cli.Flag) bool { return f.Names()[0] == "amqp-url" }) {
		if wrong := cfg.checkCertificates(); wrong != nil {
			return cfg, errors.Join(mistake(err), wrong)
		}
	}
	return cfg, mistake(err)
}

// mistake says that an error is one of the user, who set something wrong.
func mistake(err error) error {
	if err == nil {
		return nil
	}
	return usagef("%s", err)
}

// warn warns of what is probably wrong in the configuration. A command with a log warns there: what reads the log may
// expect JSON.
func (p *process) warn(c *cli.Context, cfg *config, reader *settings.Reader[config], in *settings.Input) {
	tell := func(what, advice string) {
		fmt.Fprintf(p.terminal.Err, "cdc-relay: warning: %s: %s\n", what, advice)
	}
	if slices.Contains([]string{"run", "drain", "console"}, c.Command.Name) {
		log := p.logger(cfg)
		tell = func(what, advice string) { log.Warn(what, "event", event.ConfigWarning, "hint", advice) }
	}
	if p.environ != nil {
		const listed = "docs/configuration.md lists them"
		for _, u := range reader.UnknownVariables(p.environ(), foreignVariable, listed) {
			tell(show.Printable(u.Variable)+" has no effect", u.Advice)
		}
	}
	var files []string
	for _, name := range []string{"PGPASSFILE", "PGSSLKEY"} {
		file, _ := p.lookupEnv(name)
		files = append(files, file)
	}
	nodes, _ := cfg.rabbitmq.Nodes() // none without a URL
	for _, node := range nodes {
		files = append(files, node.URI.KeyFile)
	}
	slices.Sort(files)
	for _, e := range reader.Exposed(in, hasPassword, slices.Compact(files)...) {
		may := "read"
		if e.Writable {
			may = "change"
		}
		tell("every user of this machine may "+may+" "+show.Printable(e.File), "chmod 600 "+problem.ShellWord(e.File))
	}
}

// hasPassword reports whether a text contains a URL with a password.
func hasPassword(text []byte) bool { return !bytes.Equal(show.Redact(text), text) }

// foreignVariable reports whether a variable has the prefix of settings but is not one: variables of this repository's
// scripts and tests, and those that Kubernetes sets for a Service with a name that begins with cdc-relay.
func foreignVariable(name string) bool {
	const (
		ofScripts = `(TEST|SOAK|BENCH)_.*|BINARY|DOCKER_ROOT|EXAMPLES|FUZZTIME|INSTALL|LONG|PG_BIN` +
			`|SERVICES(_DIR|_STATE)?`
		ofKubernetes = `(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?`
	)
	return regexp.MustCompile(`^(` + ofScripts + `|` + ofKubernetes + `)$`).MatchString(name)
}
