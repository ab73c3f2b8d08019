package settings

import (
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// Flag is a setting as a flag of one command. It implements cli.Flag. It keeps the text until Read decides which source
// counts. A command may change its description.
type Flag struct {
	Info
	variable string
	// file says how to give the value in a file, for the entry of this flag; "": there is no flag for one.
	file  string
	given *string
}

// Flags returns the settings as flags, and after each those for a file with its value (SecretFile).
func Flags[T any](r *Reader[T], all ...Setting[T]) (flags []cli.Flag) {
	for _, s := range all {
		own := &Flag{Info: s.Info, variable: r.Variable(s.Name)}
		flags = append(flags, own)
		for _, other := range r.All {
			if other.secretOf == s.Name {
				file := &Flag{Info: other.Info, variable: r.Variable(other.Name)}
				own.file = fmt.Sprintf(" --%s FILE [%s] reads it from a file.", file.Name, file.variable)
				flags = append(flags, file)
			}
		}
	}
	return flags
}

// FlagsOf returns those flags that are settings.
func FlagsOf(flags []cli.Flag) []*Flag {
	var own []*Flag
	for _, f := range flags {
		if s, ok := f.(*Flag); ok {
			own = append(own, s)
		}
	}
	return own
}

// Pick returns the settings with these names, in this order. It panics if there is none of a name.
func Pick[T any](all []Setting[T], names ...string) []Setting[T] {
	picked := make([]Setting[T], len(names))
	for i, name := range names {
		at := slices.IndexFunc(all, func(s Setting[T]) bool { return s.Name == name })
		if at < 0 {
			panic("there is no setting " + name)
		}
		picked[i] = all[at]
	}
	return picked
}

// Arguments returns the arguments of a command that are not flags. Flags may come before and after them; the cli
// package stops at the first argument. The error is that of the flag package, flag.ErrHelp if the help page is asked
// for.
func Arguments(command string, flags []cli.Flag, rest []string) ([]string, error) {
	var arguments []string
	for len(rest) > 0 {
		if rest[0] == "-" || !strings.HasPrefix(rest[0], "-") {
			arguments, rest = append(arguments, rest[0]), rest[1:]
			continue
		}
		set := flag.NewFlagSet(command, flag.ContinueOnError)
		set.SetOutput(io.Discard)
		for _, f := range flags {
			if err := f.Apply(set); err != nil {
				return nil, err
			}
		}
		if err := set.Parse(rest); err != nil {
			return nil, err
		}
		if help := set.Lookup("help"); help != nil && help.Value.String() == "true" {
			return nil, flag.ErrHelp
		}
		rest = set.Args()
	}
	return arguments, nil
}

// Apply implements cli.Flag.
func (f *Flag) Apply(set *flag.FlagSet) error {
	set.Var(flagValue{f}, f.Name, f.Usage)
	return nil
}

// Names implements cli.Flag.
func (f *Flag) Names() []string { return []string{f.Name} }

// IsSet implements cli.Flag.
func (f *Flag) IsSet() bool { return f.given != nil }

// IsVisible implements cli.VisibleFlag. The flag for a file has no entry of its own.
func (f *Flag) IsVisible() bool { return f.secretOf == "" }

// TakesValue implements cli.DocGenerationFlag, as the next four methods do, for the manual page.
func (f *Flag) TakesValue() bool { return f.Placeholder != "" }

// GetUsage implements cli.DocGenerationFlag.
func (f *Flag) GetUsage() string { return f.Usage + f.file }

// GetValue implements cli.DocGenerationFlag.
func (f *Flag) GetValue() string { return "" }

// GetDefaultText implements cli.DocGenerationFlag.
func (f *Flag) GetDefaultText() string { return f.Default }

// GetEnvVars implements cli.DocGenerationFlag.
func (f *Flag) GetEnvVars() []string { return []string{f.variable} }

// Choices returns the values that completion offers; nil: any text is possible.
func (f *Flag) Choices() []string { return f.choices() }

// String implements cli.Flag. It is the entry on the help page.
func (f *Flag) String() string {
	var b strings.Builder
	head := "  --" + f.Name
	if f.Placeholder != "" {
		head += " " + f.Placeholder
	}
	if f.FlagOnly {
		fmt.Fprintf(&b, "%s\n", head)
	} else {
		fmt.Fprintf(&b, "%-36s [%s]\n", head, f.variable)
	}
	usage := f.GetUsage()
	if f.Default != "" {
		usage += " Default: " + f.Default + "."
	}
	const width = 80
	for _, line := range Wrap(usage, width) {
		fmt.Fprintf(&b, "      %s\n", line)
	}
	return b.String()
}

// Wrap returns the words of a text in lines of at most width bytes. A longer word has a line of its own.
func Wrap(text string, width int) []string {
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
type flagValue struct{ *Flag }

func (v flagValue) Set(text string) error {
	if v.Repeats != "" && v.given != nil {
		text = *v.given + v.Repeats + text
	}
	v.given = &text
	return nil
}

// The flag package also calls String on a zero flagValue.
func (v flagValue) String() string {
	if v.Flag == nil || v.given == nil {
		return ""
	}
	return *v.given
}

// IsBoolFlag tells the flag package that a switch needs no value.
func (v flagValue) IsBoolFlag() bool { return v.Flag != nil && v.Placeholder == "" }
