// Package release checks goreleaser's configuration with its own code.
package release

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

// goreleaser itself takes minutes to compile: scripts/release runs it.
func TestTheGoreleaserConfigurationIsValid(t *testing.T) {
	text := objects.Read(t, ".goreleaser.yaml")
	project, err := config.LoadReader(strings.NewReader(text))
	objects.Must(t, err)
	packages := project.NFPMs[0]
	files := []string{packages.Scripts.PostInstall, packages.Scripts.PreRemove, packages.Scripts.PostRemove, project.DockersV2[0].Dockerfile}
	for _, content := range packages.Contents {
		if !strings.HasPrefix(content.Source, "bin/") { // the hooks write those
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

// goreleaser builds the image in a folder with only these files.
func TestTheImageOfAReleaseHasItsFiles(t *testing.T) {
	project, err := config.LoadReader(strings.NewReader(objects.Read(t, ".goreleaser.yaml")))
	objects.Must(t, err)
	image, copied := project.DockersV2[0], 0
	for line := range strings.Lines(objects.Read(t, image.Dockerfile)) {
		files, isCopy := strings.CutPrefix(strings.TrimSpace(line), "COPY ")
		if !isCopy {
			continue
		}
		for name, value := range image.BuildArgs {
			files = strings.ReplaceAll(files, "${"+name+"}", value)
		}
		sources := strings.Fields(files)
		for _, source := range sources[:len(sources)-1] {
			copied++
			if !slices.Contains(image.ExtraFiles, source) && source != "${TARGETPLATFORM}/cdc-relay" {
				t.Errorf("%s copies %s, which is not in extra_files", image.Dockerfile, source)
			}
		}
	}
	if copied != 4 {
		t.Errorf("%s copies %d files", image.Dockerfile, copied)
	}
}
