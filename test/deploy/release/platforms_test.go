package release

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"github.com/goreleaser/goreleaser/v2/pkg/config"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

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
