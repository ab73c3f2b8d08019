package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/cdc-relay/cdc-relay/internal/secret"
)

// Reader knows the settings of a program, and where they come from.
type Reader[T any] struct {
	// Prefix begins the name of each environment variable, such as "APP_".
	Prefix    string
	LookupEnv func(name string) (string, bool)
	// FileFlag is the setting that names the YAML file.
	FileFlag string
	// All are the settings of all commands. FlagOnly ones may have the name of one before them.
	All []Setting[T]
}

// Variable returns the name of the environment variable of a setting.
func (r *Reader[T]) Variable(name string) string {
	return r.Prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// Input is what the user gave.
type Input struct {
	// Values are the given values by the name of the setting. Values of the file for other commands are among them.
	Values map[string]Value
	// File is the YAML file, "" if there is none; FileText is its content.
	File     string
	FileText []byte
}

// Read sets the fields of target, which has the defaults, from the flags of a command, the environment and the file.
// The file also sets those that are not among the flags. The error joins all mistakes of the user. The Input is nil if
// the file cannot be read.
func (r *Reader[T]) Read(flags []cli.Flag, target *T) (*Input, error) {
	own := FlagsOf(flags)
	for _, s := range r.All {
		isOwn := slices.ContainsFunc(own, func(f *Flag) bool { return f.Name == s.Name })
		if s.Everywhere && !isOwn {
			own = append(own, &Flag{Info: s.Info})
		}
	}
	in := &Input{Values: make(map[string]Value), File: r.file(own)}
	mistakes, err := r.readFile(in, target)
	if err != nil {
		return nil, err
	}
	for _, f := range own {
		v, ok := r.given(f)
		if !ok {
			continue
		}
		if !f.FlagOnly || r.known(f.Name).FlagOnly {
			in.Values[f.Name] = v // a flag with the name of another setting says nothing about that one
		}
		if err := r.take(f, v.Text, target); err != nil {
			place := v.Place
			if v.Source == FromEnvironment {
				place = "--" + f.Name + " (from " + v.Place + ")"
			}
			mistakes = append(mistakes, fmt.Errorf("%s: %w", place, err))
		}
	}
	for _, f := range own {
		if f.secretOf != "" {
			mistakes = append(mistakes, r.checkSecret(f, in, target))
		}
	}
	return in, errors.Join(mistakes...)
}

// file returns the name of the YAML file; "": there is none.
func (r *Reader[T]) file(flags []*Flag) string {
	for _, f := range flags {
		if f.Name == r.FileFlag {
			v, _ := r.given(f)
			return v.Text
		}
	}
	return ""
}

// given returns the value from the flag, or else from the environment.
func (r *Reader[T]) given(f *Flag) (Value, bool) {
	if f.given != nil {
		return Value{*f.given, FromFlag, "--" + f.Name}, true
	}
	return r.FromEnvironment(f.Info)
}

// FromEnvironment returns the value of a setting in the environment, if there is one.
func (r *Reader[T]) FromEnvironment(s Info) (Value, bool) {
	if s.FlagOnly {
		return Value{}, false
	}
	text, ok := r.LookupEnv(r.Variable(s.Name))
	return Value{text, FromEnvironment, r.Variable(s.Name)}, ok && (text != "" || s.MayBeEmpty)
}

// take parses the value of a flag. A flag that can only be given as such may have the name of a setting of the file.
func (r *Reader[T]) take(f *Flag, text string, target *T) error {
	at := slices.IndexFunc(r.All, func(s Setting[T]) bool { return s.Name == f.Name && s.FlagOnly == f.FlagOnly })
	return r.All[at].Take(target, text)
}

// checkSecret checks the value of a setting in a file, and takes it from a file that can be read only once. Its errors
// never quote the content.
func (r *Reader[T]) checkSecret(f *Flag, in *Input, target *T) error {
	file := in.Values[f.Name].Text
	if file == "" {
		return nil
	}
	// A value that no setting can have is a mistake already.
	if value := in.Values[f.secretOf]; value.Text != "" && storable(value.Text) == nil {
		sources := []string{FromFile, FromEnvironment, FromFlag}
		of, other := slices.Index(sources, value.Source), slices.Index(sources, in.Values[f.Name].Source)
		switch {
		case of > other: // the value overrides the file
			in.Values[f.Name] = Value{}
			return r.known(f.Name).Set(target, "")
		case of == other:
			return fmt.Errorf("--%s and --%s are both given in one place, want one", f.secretOf, f.Name)
		}
		// The file overrides the value: the program reads the file if both are set.
	}
	text, err := secret.Text{File: file}.Read()
	if err != nil {
		return fmt.Errorf("--%s: %w", f.Name, err)
	}
	checked := new(T)
	if secret.ReadOnce(file) {
		checked = target
		if err := r.known(f.Name).Set(target, ""); err != nil {
			return err
		}
	}
	if err := r.known(f.secretOf).Set(checked, text); err != nil {
		return fmt.Errorf("--%s %s: %w", f.Name, file, err)
	}
	in.Values[f.secretOf] = Value{text, FromFile, file}
	return nil
}
