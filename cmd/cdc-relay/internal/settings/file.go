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
func readFile[T any](r *Reader, in *Input, all []Setting[T], target *T) (wrong []error, err error) {
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
		if known := r.known(name); known != nil {
			name = known.Describe().Name
		}
		err := r.checkKey(in.File, key, value, seen[name])
		if err == nil {
			in.Values[name] = Value{value.Value, FromFile, fmt.Sprintf("%s:%d", in.File, value.Line)}
			if bad := takeKey(r, name, value.Value, all, target); bad != nil {
				err = fmt.Errorf("%s:%d: %s: %w", in.File, value.Line, key.Value, bad)
			}
			if name != key.Value {
				in.Former = append(in.Former, Former{Name: name, Place: in.Values[name].Place + ": " + key.Value})
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
		return nil, fmt.Errorf("%s: holds more than one YAML document", name)
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
func (r *Reader) checkKey(name string, key, value *yaml.Node, line int) error {
	s := r.known(key.Value)
	switch advice := r.Removed[key.Value]; {
	case advice != "":
		return fmt.Errorf("%s:%d: %s was removed: %s", name, key.Line, key.Value, advice)
	case s == nil || s.Describe().NotInFile:
		return r.unknownKey(name, key)
	case s.Describe().FlagOnly:
		return fmt.Errorf("%s:%d: %s can only be given as a flag", name, key.Line, key.Value)
	case line > 0:
		return fmt.Errorf("%s:%d: %s stands in line %d already", name, key.Line, key.Value, line)
	case value.Kind == yaml.SequenceNode && strings.Contains(s.Describe().Placeholder, ",…"):
		return fmt.Errorf("%s:%d: %s: want one value; write the list as a,b", name, value.Line, key.Value)
	case value.Kind != yaml.ScalarNode:
		return fmt.Errorf("%s:%d: %s: want one value", name, value.Line, key.Value)
	case value.Tag == "!!null":
		return fmt.Errorf("%s:%d: %s has no value (write '' for an empty one)", name, key.Line, key.Value)
	}
	return nil
}

// known returns the setting that has or had that name; nil: there is none.
func (r *Reader) known(name string) Known {
	var former Known
	for _, s := range r.Known {
		if info := s.Describe(); info.Name == name {
			return s
		} else if slices.Contains(info.Formerly, name) {
			former = s
		}
	}
	return former
}

// takeKey parses the value of a key. It only checks the value of a setting that T does not have.
func takeKey[T any](r *Reader, name, text string, all []Setting[T], target *T) error {
	at := slices.IndexFunc(all, func(s Setting[T]) bool { return s.Name == name && !s.FlagOnly })
	if at < 0 {
		return r.known(name).Check(text)
	}
	return all[at].Take(target, text)
}

func (r *Reader) unknownKey(name string, key *yaml.Node) error {
	var names []string
	for _, known := range r.Known {
		if s := known.Describe(); !s.NotInFile && !s.FlagOnly {
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
