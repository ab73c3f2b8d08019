package deploy

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

// workflow has the parts of a workflow that decide what others could do with it. actionlint checks the rest.
type workflow struct {
	Permissions map[string]string `json:"permissions"`
	On          map[string]any    `json:"true"` // in YAML 1.1, "on" is a boolean
	Jobs        map[string]struct {
		Uses    string `json:"uses"`
		Timeout int    `json:"timeout-minutes"`
		Steps   []struct {
			Uses string         `json:"uses"`
			Run  string         `json:"run"`
			With map[string]any `json:"with"`
		} `json:"steps"`
	} `json:"jobs"`
}

// workflows returns the texts of all workflows, by the name of their file.
func workflows(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(objects.Path(".github/workflows/*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	texts := make(map[string]string)
	for _, file := range files {
		texts[filepath.Base(file)] = objects.Read(t, ".github/workflows/"+filepath.Base(file))
	}
	return texts
}

func TestWorkflowsUseActionsByCommit(t *testing.T) {
	uses := regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
	pinned := regexp.MustCompile(`^(\./\S+|[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$`)
	versions := make(map[string]string)
	for name, text := range workflows(t) {
		for _, found := range uses.FindAllStringSubmatch(text, -1) {
			if !pinned.MatchString(found[1]) {
				t.Errorf("%s: %q is not a commit with its version", name, found[1])
			}
			action, version, _ := strings.Cut(found[1], "@")
			if other := versions[action]; other != "" && other != version {
				t.Errorf("%s: %s has versions %s and %s", name, action, other, version)
			}
			versions[action] = version
		}
	}
}

func TestWorkflowsGiveNoMoreRightsThanNeeded(t *testing.T) {
	for name, text := range workflows(t) {
		var flow workflow
		if err := yaml.Unmarshal([]byte(text), &flow); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(flow.On) == 0 {
			t.Errorf("%s: nothing starts it", name)
		}
		if !strings.Contains(text, "\npermissions:") {
			t.Errorf("%s: the default of the repository decides its permissions", name)
		}
		for scope, right := range flow.Permissions {
			if right == "write" {
				t.Errorf("%s: all its jobs may write %s", name, scope)
			}
		}
		for _, event := range []string{"pull_request_target", "workflow_run", "issue_comment"} {
			if _, ok := flow.On[event]; ok {
				t.Errorf("%s: %s runs with the rights of the repository on the files of strangers", name, event)
			}
		}
		for job, its := range flow.Jobs {
			if its.Uses == "" && its.Timeout == 0 {
				t.Errorf("%s: job %s has no timeout", name, job)
			}
			for _, step := range its.Steps {
				if strings.Contains(step.Run, "${{") {
					t.Errorf("%s: job %s puts a value into a script, not into a variable: %s", name, job, step.Run)
				}
				if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
					t.Errorf("%s: job %s leaves a token in its files", name, job)
				}
			}
		}
	}
}
