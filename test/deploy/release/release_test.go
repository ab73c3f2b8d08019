// Package release checks goreleaser's configuration with its own code.
package release

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"golang.org/x/tools/go/packages"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

// goreleaser itself takes minutes to compile: scripts/release runs it.
func TestTheGoreleaserConfigurationIsValid(t *testing.T) {
	project, err := config.LoadReader(strings.NewReader(objects.Read(t, ".goreleaser.yaml")))
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

// CI builds the files of one platform. For the others, it checks the types, which takes seconds instead of minutes.
func TestTheRelayIsValidForEveryPlatformOfARelease(t *testing.T) {
	project, err := config.LoadReader(strings.NewReader(objects.Read(t, ".goreleaser.yaml")))
	objects.Must(t, err)
	build := project.Builds[0]
	for _, system := range build.Goos {
		for _, processor := range build.Goarch {
			t.Run(system+"_"+processor, func(t *testing.T) {
				checkTypes(t, build.Main, "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0")
			})
		}
	}
}

// checkTypes checks the bodies of functions only in the relay's own packages.
func checkTypes(t *testing.T, program string, environment ...string) {
	const own = "github.com/cdc-relay/"
	config := &packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps,
		Dir:  objects.Path(""), Env: append(os.Environ(), environment...),
	}
	programs, err := packages.Load(config, program)
	objects.Must(t, err)
	var names []string
	packages.Visit(programs, nil, func(p *packages.Package) {
		if strings.HasPrefix(p.PkgPath, own) {
			names = append(names, p.PkgPath)
		}
	})
	config.Mode |= packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedTypesSizes
	checked, err := packages.Load(config, names...)
	objects.Must(t, err)
	if len(checked) < 10 {
		t.Fatalf("checked %d packages", len(checked))
	}
	packages.Visit(checked, nil, func(p *packages.Package) {
		for _, failure := range p.Errors {
			t.Error(failure)
		}
	})
}
