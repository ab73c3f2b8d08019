package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readFile reads a configuration file: one YAML mapping from names of settings to values. It returns all wrong values,
// or why there are none.
func (r *Reader[T]) readFile(in *Input, target *T) (wrong []error, err error) {
	if in.File == "" {
		return nil, nil
	}
	if in.FileText, err = os.ReadFile(in.File); err != nil {
		return nil, fmt.Errorf("--%s: %w", r.FileFlag, err)
	}
	root, err := mapping(in.File, in.FileText)
	if err != nil || root == nil {
		return nil, err
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		name := key.Value
		err := r.checkKey(in.File, key, value, seen[name])
		if err == nil {
			in.Values[name] = Value{value.Value, FromFile, fmt.Sprintf("%s:%d", in.File, value.Line)}
			if bad := r.known(name).Take(target, value.Value); bad != nil {
				err = fmt.Errorf("%s:%d: %s: %w", in.File, value.Line, name, bad)
			}
		}
		seen[name] = key.Line
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong, nil
}

// mapping returns nil for a file without settings.
func mapping(name string, text []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // an empty file
	} else if err != nil {
		return nil, yamlError(name, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: contains more than one YAML document", name)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want lines of the form \"name: value\"", name, root.Line)
	}
	return root, nil
}

// checkKey reports whether the key is a setting with one value. Line is where the key stood before; 0: nowhere.
func (r *Reader[T]) checkKey(name string, key, value *yaml.Node, line int) error {
	s := r.known(key.Value)
	switch {
	case s == nil || s.NotInFile:
		return r.unknownKey(name, key)
	case s.FlagOnly:
		return fmt.Errorf("%s:%d: %s can only be given as a flag", name, key.Line, key.Value)
	case line > 0:
		return fmt.Errorf("%s:%d: %s is already in line %d", name, key.Line, key.Value, line)
	case value.Kind == yaml.SequenceNode && strings.Contains(s.Placeholder, ",…"):
		return fmt.Errorf("%s:%d: %s: want one value; write the list as a,b", name, value.Line, key.Value)
	case value.Kind != yaml.ScalarNode:
		return fmt.Errorf("%s:%d: %s: want one value", name, value.Line, key.Value)
	case value.Tag == "!!null":
		return fmt.Errorf("%s:%d: %s has no value (write '' for an empty one)", name, key.Line, key.Value)
	}
	return nil
}

// known returns the setting of that name; nil: there is none.
func (r *Reader[T]) known(name string) *Setting[T] {
	at := slices.IndexFunc(r.All, func(s Setting[T]) bool { return s.Name == name })
	if at < 0 {
		return nil
	}
	return &r.All[at]
}

func (r *Reader[T]) unknownKey(name string, key *yaml.Node) error {
	var names []string
	for _, s := range r.All {
		if !s.NotInFile && !s.FlagOnly {
			names = append(names, s.Name)
		}
	}
	if near := Nearest(key.Value, names); near != "" {
		return fmt.Errorf("%s:%d: unknown key %q, did you mean %q?", name, key.Line, key.Value, near)
	}
	return fmt.Errorf("%s:%d: unknown key %q; the keys are the names of the flags", name, key.Line, key.Value)
}

// yamlError puts the place first, as in the other errors, and everything into one line.
func yamlError(name string, err error) error {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	text := strings.Join(lines, "; ")
	match := regexp.MustCompile(`^yaml: line (\d+): (.*)$`).FindStringSubmatch(text)
	if match == nil {
		return fmt.Errorf("%s: %s", name, text)
	}
	return fmt.Errorf("%s:%s: not valid YAML: %s", name, match[1], match[2])
}
