package settings

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Info describes a setting, without the field that it sets.
type Info struct {
	// Name is that of the flag, without dashes at its begin, and the key of the file.
	Name string
	// Placeholder stands for the value on the help page; empty for a switch. "a|b" lists all values. For "FILE", any
	// bytes are valid.
	Placeholder string
	Usage       string
	// Default is the default as shown on the help page; empty: there is none.
	Default string
	// Values are the usual values, for completion, if the placeholder does not name them.
	Values []string
	// MayBeEmpty: an empty environment variable counts as a value.
	MayBeEmpty bool
	// NotInFile: the setting makes no sense in the file.
	NotInFile bool
	// FlagOnly: neither the environment nor the file can set it.
	FlagOnly bool
	// Advanced: only experts change it; a help page may list it last.
	Advanced bool
	// Repeats: a second flag adds to the first, after this text; "": it replaces the first.
	Repeats string
	// Private: it names a file that only the user of the program should be able to read.
	Private bool
	// Shared: a command that did not get it takes it from the running program.
	Shared bool
	// Everywhere: the environment sets it for a command without the flag, too, as the file does.
	Everywhere bool

	// secretOf is the setting whose value the named file contains.
	secretOf string
}

// Setting is one setting of a T.
type Setting[T any] struct {
	Info
	// Set parses the text into the target. Its error says which values are valid, and quotes no secret.
	Set func(target *T, text string) error
}

// Take parses a value into the target. It rejects texts that databases and brokers cannot store.
func (s Setting[T]) Take(target *T, text string) error {
	if s.Placeholder != "FILE" {
		if err := storable(text); err != nil {
			return err
		}
	}
	if strings.HasPrefix(s.Placeholder, "URL") {
		text = strings.TrimSpace(text) // a file or a secret ends with a line end
	}
	return s.Set(target, text)
}

func storable(text string) error {
	switch {
	case !utf8.ValidString(text):
		return errors.New("not valid UTF-8")
	case strings.Contains(text, "\x00"):
		return errors.New("contains a NUL character")
	}
	return nil
}

// Text returns a setting for a text. The checks say which texts are valid; the text is set before.
func Text[T any](
	name, placeholder, byDefault, usage string, field func(*T) *string, checks ...func(text string) error,
) Setting[T] {
	return Func(name, placeholder, byDefault, usage, func(target *T, text string) error {
		*field(target) = text
		for _, check := range checks {
			if err := check(text); err != nil {
				return err
			}
		}
		return nil
	})
}

// Parsed returns a setting for any type. A field keeps its default on a mistake.
func Parsed[T, V any](
	name, placeholder, byDefault, usage string, field func(*T) *V, parse func(text string) (V, error),
) Setting[T] {
	return Func(name, placeholder, byDefault, usage, func(target *T, text string) error {
		value, err := parse(text)
		if err == nil {
			*field(target) = value
		}
		return err
	})
}

// Func returns a setting with a setter of its own, for what is more than one field.
func Func[T any](name, placeholder, byDefault, usage string, set func(target *T, text string) error) Setting[T] {
	return Setting[T]{Info{Name: name, Placeholder: placeholder, Default: byDefault, Usage: usage}, set}
}

// List returns a setting for texts with commas between them; it may be empty.
func List[T any](name, placeholder, usage string, field func(*T) *[]string) Setting[T] {
	parse := func(text string) ([]string, error) { return ListOf(text), nil }
	return MayBeEmpty(Parsed(name, placeholder, "", usage, field, parse))
}

// Choice returns a setting for one of some words.
func Choice[T any, C ~string](name, byDefault, usage string, field func(*T) *C, words ...string) Setting[T] {
	parse := func(text string) (C, error) { return C(text), OneOf(text, words...) }
	return Parsed(name, strings.Join(words, "|"), byDefault, usage, field, parse)
}

// Int returns a setting for any whole number.
func Int[T any](name, byDefault, usage string, field func(*T) *int) Setting[T] {
	return Parsed(name, "NUMBER", byDefault, usage, field, parseInt)
}

func parseInt(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%q: want a whole number", text)
	}
	return n, nil
}

// Number returns a setting for a whole number from least to most.
func Number[T any](name, byDefault, usage string, least, most int, field func(*T) *int) Setting[T] {
	parse := func(text string) (int, error) {
		n, err := parseInt(text)
		if err == nil && (n < least || n > most) {
			err = fmt.Errorf("%s: want %d to %d", text, least, most)
		}
		return n, err
	}
	return Parsed(name, "NUMBER", byDefault, usage, field, parse)
}

// Duration returns a setting for a duration, see ParseDuration.
func Duration[T any](name, byDefault, usage string, field func(*T) *time.Duration) Setting[T] {
	return Parsed(name, "DURATION", byDefault, usage, field, ParseDuration)
}

// Switch returns a setting without a value: it is off unless given.
func Switch[T any](name, usage string, field func(*T) *bool) Setting[T] {
	return Parsed(name, "", "", usage, field, parseSwitch)
}

func parseSwitch(text string) (bool, error) {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%q: want true or false", text)
	}
	return on, nil
}

// Offering sets the values that completion offers.
func Offering[T any](s Setting[T], values []string) Setting[T] {
	s.Values = values
	return s
}

// FlagOnly excludes a setting from the environment and the file.
func FlagOnly[T any](s Setting[T]) Setting[T] {
	s.FlagOnly = true
	return s
}

// Everywhere lets the environment set a setting for commands without its flag.
func Everywhere[T any](s Setting[T]) Setting[T] {
	s.Everywhere = true
	return s
}

// Shared lets other commands take a setting from the running program.
func Shared[T any](s Setting[T]) Setting[T] {
	s.Shared = true
	return s
}

// Private says that only the user of the program should be able to read the file that a setting names.
func Private[T any](s Setting[T]) Setting[T] {
	s.Private = true
	return s
}

// MayBeEmpty lets an empty variable count as a value.
func MayBeEmpty[T any](s Setting[T]) Setting[T] {
	s.MayBeEmpty = true
	return s
}

// Repeats lets a second flag add to the first, after a comma.
func Repeats[T any](s Setting[T]) Setting[T] {
	s.Repeats = ","
	return s
}

// Texts returns a setting for several texts, one for each flag.
func Texts[T any](
	name, placeholder, usage string, field func(*T) *[]string, check func(text string) error,
) Setting[T] {
	const separator = "\x1f" // no text contains it
	s := Func(name, placeholder, "", usage, func(target *T, text string) error {
		*field(target) = strings.Split(text, separator)
		for _, one := range *field(target) {
			if err := check(one); err != nil {
				return err
			}
		}
		return nil
	})
	s.Repeats = separator
	return s
}

// SecretFile returns a setting for a file with the value of another setting, which neither a flag nor the environment
// should show. Set keeps the name of the file: the program reads it with package secret, whenever it needs the value.
func SecretFile[T any](of string, set func(target *T, file string)) Setting[T] {
	return Setting[T]{
		Info: Info{
			Name:        of + "-file",
			Placeholder: "FILE",
			Usage:       "A file with the value of --" + of + ".",
			Private:     true,
			secretOf:    of,
		},
		Set: func(target *T, file string) error { set(target, file); return nil }, // Read checks the content
	}
}

// choices returns the values that completion offers; nil: any text is possible.
func (i *Info) choices() []string {
	if i.Values == nil && strings.Contains(i.Placeholder, "|") {
		return strings.Split(i.Placeholder, "|")
	}
	return i.Values
}

// defaultValue returns the value that applies if nobody sets one; false: there is none.
func (i *Info) defaultValue() (string, bool) {
	switch {
	case i.Placeholder == "":
		return "false", true // a switch
	case i.Default == "":
		return "", false
	}
	text, _, _ := strings.Cut(i.Default, ", ") // "'', the default exchange"
	return strings.Trim(text, "'"), true
}

// The sources of a value.
const (
	FromFlag        = "flag"
	FromEnvironment = "environment"
	FromFile        = "file"
	ByDefault       = "default"
)

// Value is what the user gave for a setting.
type Value struct {
	Text   string
	Source string // FromFlag, FromEnvironment or FromFile
	Place  string // the flag, the variable, or the file and its line
}

// Shown is one setting with its value and its source. It is a public JSON format.
type Shown struct {
	Name string `json:"name"`
	// Value is the text as set; null: not set.
	Value  *string `json:"value"`
	Source string  `json:"source"` // flag, environment, file, default
	// Place is the flag, the variable, or the file and its line; null for a default.
	Place *string `json:"place"`
}

// Effective returns the value of a setting. Mask removes passwords from what the user gave for the setting.
func Effective(of Info, given map[string]Value, mask func(name, text string) string) Shown {
	if v, ok := given[of.Name]; ok {
		text := mask(of.Name, v.Text)
		return Shown{Name: of.Name, Value: &text, Source: v.Source, Place: &v.Place}
	}
	shown := Shown{Name: of.Name, Source: ByDefault}
	if text, ok := of.defaultValue(); ok {
		shown.Value = &text
	}
	return shown
}

// Exposed is a file that every user of this machine can read, or even change.
type Exposed struct {
	File     string
	Writable bool
}

// Exposed returns the files with secrets that other users can read or change: those of Private settings, more files,
// and the configuration file. That one decides what the program does, so nobody else may change it; it may be readable
// unless it has a secret itself.
func (r *Reader[T]) Exposed(in *Input, hasSecret func(text []byte) bool, more ...string) []Exposed {
	if os.Getpid() == 1 { // in a container there are no other users, and its secrets are often readable by all
		return nil
	}
	var files []string
	for _, s := range r.All {
		if s.Private {
			files = append(files, in.Values[s.Name].Text)
		}
	}
	const readable, writable = 0o004, 0o002
	var found []Exposed
	for _, file := range slices.Concat(files, more, []string{in.File}) {
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch mode := info.Mode().Perm(); {
		case mode&writable != 0:
			found = append(found, Exposed{file, true})
		case mode&readable != 0 && (file != in.File || hasSecret(in.FileText)):
			found = append(found, Exposed{file, false})
		}
	}
	return found
}
