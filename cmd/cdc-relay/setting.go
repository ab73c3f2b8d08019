package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

// setting is one flag, which is also an environment variable and a key of the configuration file. It implements
// cli.Flag. Values stay text until resolve decides which source counts.
type setting struct {
	name string
	// value is the placeholder on the help page; empty for a switch.
	value string
	usage string
	// byDefault is the default as shown on the help page.
	byDefault string
	// mayBeEmpty: an empty environment variable counts as a value.
	mayBeEmpty bool
	// notInFile: the setting makes no sense in the file.
	notInFile bool
	// flagOnly: a forgotten file or variable must not set it, such as which rows to delete, or to skip a question.
	flagOnly bool
	// advanced: only experts change it; the help pages of run and drain list it last.
	advanced bool
	// repeats: a second flag adds to the first.
	repeats bool
	// values are the usual values, for completion, if the placeholder does not name them.
	values []string
	// set parses the text into the config. Its error says which values are valid.
	set func(c *config, text string) error

	given *string
}

// envName returns the name of the environment variable.
func (s *setting) envName() string {
	return "CDC_RELAY_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// Apply implements cli.Flag.
func (s *setting) Apply(set *flag.FlagSet) error {
	set.Var(flagValue{s}, s.name, s.usage)
	return nil
}

// take parses a value. No value contains what Postgres and RabbitMQ cannot take. The name of a file may be any bytes. The
// error does not quote the value, which may be a URL with a password.
func (s *setting) take(c *config, text string) error {
	switch {
	case s.value == "FILE":
	case !utf8.ValidString(text):
		return errors.New("not valid UTF-8")
	case strings.Contains(text, "\x00"):
		return errors.New("contains a NUL character")
	}
	return s.set(c, text)
}

// Names implements cli.Flag.
func (s *setting) Names() []string { return []string{s.name} }

// Advanced tells the help page to list it last.
func (s *setting) Advanced() bool { return s.advanced }

// IsSet implements cli.Flag.
func (s *setting) IsSet() bool { return s.given != nil }

// IsVisible implements cli.VisibleFlag.
func (s *setting) IsVisible() bool { return true }

// TakesValue implements cli.DocGenerationFlag, as the next four methods do, for the manual page.
func (s *setting) TakesValue() bool { return s.value != "" }

// GetUsage implements cli.DocGenerationFlag.
func (s *setting) GetUsage() string { return s.usage }

// GetValue implements cli.DocGenerationFlag.
func (s *setting) GetValue() string { return "" }

// GetDefaultText implements cli.DocGenerationFlag.
func (s *setting) GetDefaultText() string { return s.byDefault }

// GetEnvVars implements cli.DocGenerationFlag.
func (s *setting) GetEnvVars() []string { return []string{s.envName()} }

// String implements cli.Flag. It is the entry on the help page.
func (s *setting) String() string {
	var b strings.Builder
	head := "  --" + s.name
	if s.value != "" {
		head += " " + s.value
	}
	if s.flagOnly {
		fmt.Fprintf(&b, "%s\n", head)
	} else {
		fmt.Fprintf(&b, "%-36s [%s]\n", head, s.envName())
	}
	usage := s.usage
	if s.byDefault != "" {
		usage += " Default: " + s.byDefault + "."
	}
	for _, line := range wrap(usage, 80) {
		fmt.Fprintf(&b, "      %s\n", line)
	}
	return b.String()
}

// choices returns the values that completion offers; nil: any text is possible.
func (s *setting) choices() []string {
	if s.values == nil && strings.Contains(s.value, "|") {
		return strings.Split(s.value, "|")
	}
	return s.values
}

// defaultText returns the value that applies if nobody sets one; false: there is none.
func (s *setting) defaultText() (string, bool) {
	switch {
	case s.value == "":
		return "false", true // a switch
	case s.byDefault == "":
		return "", false
	}
	text, _, _ := strings.Cut(s.byDefault, ", ") // "'', the default exchange"
	return strings.Trim(text, "'"), true
}

func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// flagValue receives the value from the flag package.
type flagValue struct{ *setting }

func (v flagValue) Set(text string) error {
	if v.repeats && v.given != nil {
		text = *v.given + "," + text
	}
	v.given = &text
	return nil
}

// The flag package also calls String on a zero flagValue.
func (v flagValue) String() string {
	if v.setting == nil || v.given == nil {
		return ""
	}
	return *v.given
}

// IsBoolFlag tells the flag package that a switch needs no value.
func (v flagValue) IsBoolFlag() bool { return v.setting != nil && v.value == "" }

// resolve reads the settings of a command. A flag overrides the environment, the environment the file, the file the
// default.
func (p *process) resolve(c *cli.Context) (*config, error) {
	if c.Args().Present() {
		return nil, unexpected(c)
	}
	return p.settingsFor(c)
}

func unexpected(c *cli.Context) error {
	return usagef("%s: unexpected argument %q", c.Command.Name, c.Args().First())
}

// settingsFor does the same as resolve for commands that accept arguments. With mistakes in values, it returns them and
// the other settings; without the file, no settings.
func (p *process) settingsFor(c *cli.Context) (*config, error) {
	cfg := defaultConfig()
	settings := settingsOf(c.Command.Flags)
	file := p.configFile(settings)
	var wrong []error
	if file != "" {
		var err error
		if wrong, err = readFile(file, cfg); err != nil {
			return nil, err
		}
	}
	for _, s := range settings {
		v, ok := p.givenTo(s)
		if !ok {
			continue
		}
		cfg.given[s.name] = v
		if err := s.take(cfg, v.text); err != nil {
			place := ""
			if v.source == fromEnvironment {
				place = " (from " + v.place + ")"
			}
			wrong = append(wrong, usagef("--%s%s: %s", s.name, place, err))
		}
	}
	warn := p.warning(c, cfg)
	p.warnOfVariables(warn)
	p.warnOfModes(warn, file, cfg)
	wrong = append(wrong, cfg.readFiles(settings))
	return cfg, errors.Join(wrong...)
}

// The sources of a value.
const (
	fromFlag        = "flag"
	fromEnvironment = "environment"
	fromFile        = "file"
	byDefault       = "default"
)

// given is the value of a setting, as text, with its source.
type given struct {
	text   string
	source string
	place  string // the flag, the variable, or the file and its line
}

// givenTo returns the value from the flag, or else from the environment.
func (p *process) givenTo(s *setting) (given, bool) {
	if s.given != nil {
		return given{*s.given, fromFlag, "--" + s.name}, true
	}
	if s.flagOnly {
		return given{}, false
	}
	text, ok := p.lookupEnv(s.envName())
	return given{text, fromEnvironment, s.envName()}, ok && (text != "" || s.mayBeEmpty)
}

func settingsOf(flags []cli.Flag) []*setting {
	var settings []*setting
	for _, f := range flags {
		if s, ok := f.(*setting); ok {
			settings = append(settings, s)
		}
	}
	return settings
}

func (p *process) configFile(settings []*setting) string {
	for _, s := range settings {
		if s.name != "config" {
			continue
		}
		if s.given != nil {
			return *s.given
		}
		file, _ := p.lookupEnv(s.envName())
		return file
	}
	return ""
}
