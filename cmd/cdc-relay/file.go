package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
)

// readFile reads a configuration file: one YAML mapping from flag names to values. It returns all wrong values, or why
// there are none.
func readFile(name string, cfg *config) (wrong []error, err error) {
	root, err := fileMapping(name)
	if err != nil || root == nil {
		return nil, err
	}
	return readMapping(name, root, cfg), nil
}

// fileMapping returns nil for a file without settings.
func fileMapping(name string) (*yaml.Node, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("--config: %s", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // an empty file
	} else if err != nil {
		return nil, usagef("%s", yamlError(name, err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, usagef("%s: holds more than one YAML document", name)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, usagef("%s:%d: want lines of the form \"name: value\"", name, root.Line)
	}
	return root, nil
}

func readMapping(name string, root *yaml.Node, cfg *config) (wrong []error) {
	known := make(map[string]*setting)
	for _, s := range allSettings() {
		known[s.name] = s
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		s := known[key.Value]
		var err error
		switch line := seen[key.Value]; {
		case s == nil || s.notInFile:
			err = unknownKey(name, key)
		case s.flagOnly:
			err = usagef("%s:%d: %s can only be given as a flag", name, key.Line, key.Value)
		case line > 0:
			err = usagef("%s:%d: %s stands in line %d already", name, key.Line, key.Value, line)
		case value.Kind == yaml.SequenceNode && strings.Contains(s.value, ",…"):
			err = usagef("%s:%d: %s: want one value; write the list as a,b", name, value.Line, key.Value)
		case value.Kind != yaml.ScalarNode:
			err = usagef("%s:%d: %s: want one value", name, value.Line, key.Value)
		case value.Tag == "!!null":
			err = usagef("%s:%d: %s has no value (write '' for an empty one)", name, key.Line, key.Value)
		default:
			cfg.given[s.name] = given{value.Value, fromFile, fmt.Sprintf("%s:%d", name, value.Line)}
			if bad := s.take(cfg, value.Value); bad != nil {
				err = usagef("%s:%d: %s: %s", name, value.Line, key.Value, bad)
			}
		}
		seen[key.Value] = key.Line
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong
}

func unknownKey(name string, key *yaml.Node) error {
	var names []string
	for _, s := range allSettings() {
		if !s.notInFile && !s.flagOnly {
			names = append(names, s.name)
		}
	}
	if near := nearest(key.Value, names); near != "" {
		return usagef("%s:%d: unknown key %q, did you mean %q?", name, key.Line, key.Value, near)
	}
	return usagef("%s:%d: unknown key %q; the keys are the names of the flags", name, key.Line, key.Value)
}

// yamlError rewrites an error of the YAML parser in the style of the other errors.
func yamlError(name string, err error) string {
	match := regexp.MustCompile(`^yaml: line (\d+): (.*)$`).FindStringSubmatch(show.OneLine(err.Error()))
	if match == nil {
		return fmt.Sprintf("%s: %s", name, show.OneLine(err.Error()))
	}
	return fmt.Sprintf("%s:%s: not valid YAML: %s", name, match[1], match[2])
}
