package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// readFile reads a configuration file: one YAML mapping from the names of flags
// to their values.
func readFile(name string, cfg *config) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return usagef("--config: %s", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // an empty file says nothing
	} else if err != nil {
		return usagef("%s", yamlError(name, err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return usagef("%s: holds more than one YAML document", name)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	if root.Kind != yaml.MappingNode {
		return usagef("%s:%d: want lines of the form \"name: value\"", name, root.Line)
	}
	return readMapping(name, root, cfg)
}

func readMapping(name string, root *yaml.Node, cfg *config) error {
	known := make(map[string]*setting)
	var names []string
	for _, s := range allSettings() {
		if !s.notInFile {
			known[s.name] = s
			names = append(names, s.name)
		}
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		s, ok := known[key.Value]
		if !ok {
			if near := nearest(key.Value, names); near != "" {
				return usagef("%s:%d: unknown key %q, did you mean %q?", name, key.Line, key.Value, near)
			}
			return usagef("%s:%d: unknown key %q; the keys are the names of the flags", name, key.Line, key.Value)
		}
		if line := seen[key.Value]; line > 0 {
			return usagef("%s:%d: %s stands in line %d already", name, key.Line, key.Value, line)
		}
		seen[key.Value] = key.Line
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if value.Kind != yaml.ScalarNode {
			return usagef("%s:%d: %s: want one value", name, value.Line, key.Value)
		}
		if value.Tag == "!!null" {
			return usagef("%s:%d: %s has no value (write '' for an empty one)", name, key.Line, key.Value)
		}
		if err := s.set(cfg, value.Value); err != nil {
			return usagef("%s:%d: %s: %s", name, value.Line, key.Value, err)
		}
	}
	return nil
}

// yamlError puts the parser's message into the form of the other messages.
func yamlError(name string, err error) string {
	match := regexp.MustCompile(`^yaml: line (\d+): (.*)$`).FindStringSubmatch(oneLine(err.Error()))
	if match == nil {
		return fmt.Sprintf("%s: %s", name, oneLine(err.Error()))
	}
	return fmt.Sprintf("%s:%s: not valid YAML: %s", name, match[1], match[2])
}
