// Package release checks goreleaser's configuration with its own code.
package release

import (
	"os"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

// goreleaser itself takes minutes to compile: scripts/release runs it.
func TestTheGoreleaserConfigurationIsValid(t *testing.T) {
	text := objects.Read(t, ".goreleaser.yaml")
	project, err := config.LoadReader(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	packages := project.NFPMs[0]
	files := []string{packages.Scripts.PostInstall, packages.Scripts.PreRemove, packages.Scripts.PostRemove, project.DockersV2[0].Dockerfile}
	for _, content := range packages.Contents {
		if !strings.HasPrefix(content.Source, "bin/manual/") { // scripts/manual writes those
			files = append(files, content.Source)
		}
	}
	for _, file := range files {
		if info, err := os.Stat(objects.Path(file)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%q is no file: %v", file, err)
		}
	}
	if _, err := config.LoadReader(strings.NewReader(strings.Replace(text, "goarch:", "go_arch:", 1))); err == nil {
		t.Error("an unknown key is accepted")
	}
}
