package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

const mit = "Permission is hereby granted, free of charge, to any person\n> obtaining a copy of this software"

func TestEachModuleOfTheProgramHasItsLicence(t *testing.T) {
	all := notices{}
	if err := all.addProgram("../../..", platform{"linux", "amd64"}); err != nil {
		t.Fatal(err)
	}
	text := string(all.text())
	for _, module := range []string{
		"Go standard library go", "github.com/jackc/pgx/v5 v5.", "github.com/rabbitmq/amqp091-go v1.",
	} {
		if !strings.Contains(text, "\n"+module) {
			t.Errorf("no licence of %s", module)
		}
	}
}

func TestThePlatformsAreThoseOfARelease(t *testing.T) {
	var project struct {
		Builds []struct {
			Goos   []string `json:"goos"`
			Goarch []string `json:"goarch"`
		} `json:"builds"`
	}
	if err := yaml.Unmarshal([]byte(objects.Read(t, ".goreleaser.yaml")), &project); err != nil {
		t.Fatal(err)
	}
	var released []platform
	for _, system := range project.Builds[0].Goos {
		for _, processor := range project.Builds[0].Goarch {
			released = append(released, platform{system, processor})
		}
	}
	if !slices.Equal(platforms(), released) {
		t.Errorf("licences for %v, releases for %v", platforms(), released)
	}
}

func TestOtherLicencesFail(t *testing.T) {
	for name, text := range map[string]string{
		"GPL":       "GNU GENERAL PUBLIC\nLICENSE Version 3",
		"LGPL":      "GNU Lesser General Public License",
		"AGPL":      "GNU AFFERO GENERAL PUBLIC LICENSE",
		"MPL":       "Mozilla Public License Version 2.0",
		"BUSL":      "Business Source License 1.1",
		"MIT + GPL": mit + " and the GNU General Public License",
		"own":       "Copyright 2026. All rights reserved.",
		"empty":     "",
	} {
		if err := check(text); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// module writes files into a folder, and returns its name.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	top := t.TempDir()
	for name, text := range files {
		name = filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func TestCopiedCodeHasItsOwnLicence(t *testing.T) {
	top := module(t, map[string]string{
		"LICENSE": mit, "NOTICE.txt": "a notice", "license.go": "package a", "other/LICENSE": "none",
		"in/copied/COPYING": "Apache License, Version 2.0",
	})
	all := notices{}
	if err := all.addPackage("example.com/a v1.0.0", top, filepath.Join(top, "in/copied")); err != nil {
		t.Fatal(err)
	}
	if len(all) != 3 { // two licences and a notice
		t.Errorf("the file has %q", all.text())
	}
	for _, folder := range []string{"other", "in/none"} {
		lonely := module(t, map[string]string{"other/LICENSE": "none", "in/none/a.go": "package none"})
		if err := all.addPackage("example.com/b v1.0.0", lonely, filepath.Join(lonely, folder)); err == nil {
			t.Errorf("a module with %s is accepted", folder)
		}
	}
}
