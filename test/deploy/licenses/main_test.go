package main

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

const mit = "Permission is hereby granted, free of charge, to any person\n> obtaining a copy of this software"

func TestEachModuleOfTheProgramHasItsLicence(t *testing.T) {
	all := notices{}
	objects.Must(t, all.addProgram("../../..", platform{"linux", "amd64"}))
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
	objects.Must(t, yaml.Unmarshal([]byte(objects.Read(t, ".goreleaser.yaml")), &project))
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
