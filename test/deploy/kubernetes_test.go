// Package deploy checks the files of deploy/ with the code that reads them: the Go types of Kubernetes and Compose.
// Package helm checks the chart, and package release goreleaser's configuration: they take longer to compile. All are
// in a separate module, so that the relay does not depend on their dependencies.
package deploy

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

func TestManifestsDecodeStrictly(t *testing.T) {
	for name, count := range map[string]int{"relay.yaml": 5, "setup.yaml": 1, "secrets.example.yaml": 2} {
		if found := objects.Manifest(t, name); len(found) != count {
			t.Errorf("deploy/kubernetes/%s: %d objects, want %d", name, len(found), count)
		}
	}
}

func TestManifestsReferToEachOther(t *testing.T) {
	objects.BelongTogether(t, objects.Manifest(t, "relay.yaml"))
	job := objects.One[batchv1.Job](t, objects.Manifest(t, "setup.yaml"))
	objects.Mounted(t, &job.Spec.Template.Spec)
}

// The secrets that the pods mount are those of the example.
func TestTheExampleHasEveryMountedSecret(t *testing.T) {
	secrets := make(map[string]map[string]string)
	for _, object := range objects.Manifest(t, "secrets.example.yaml") {
		secret := object.(*corev1.Secret)
		secrets[secret.Name] = secret.StringData
	}
	deployment := objects.One[appsv1.Deployment](t, objects.Manifest(t, "relay.yaml"))
	job := objects.One[batchv1.Job](t, objects.Manifest(t, "setup.yaml"))
	for _, pod := range []corev1.PodSpec{deployment.Spec.Template.Spec, job.Spec.Template.Spec} {
		var keys map[string]string
		for _, volume := range pod.Volumes {
			if volume.Secret != nil {
				keys = secrets[volume.Secret.SecretName]
			}
		}
		for _, variable := range pod.Containers[0].Env {
			folder, key, _ := strings.Cut(strings.TrimPrefix(variable.Value, "/run/secrets/"), "/")
			if _, ok := keys[key]; !ok || folder != "cdc-relay" {
				t.Errorf("%s: %s is no key of the mounted secret", variable.Name, variable.Value)
			}
		}
	}
}

// kubectl can apply the folder with its kustomization.
func TestTheKustomizationIsValid(t *testing.T) {
	// Kustomize's own types take long to compile.
	var list struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Resources  []string `json:"resources"`
		Images     []struct {
			Name   string `json:"name"`
			NewTag string `json:"newTag"`
		} `json:"images"`
	}
	text, err := yaml.YAMLToJSONStrict([]byte(objects.Read(t, "deploy/kubernetes/kustomization.yaml")))
	objects.Must(t, err)
	faults, err := json.UnmarshalStrict(text, &list)
	objects.Must(t, errors.Join(append(faults, err)...))
	if len(list.Resources) != 1 || len(list.Images) != 1 {
		t.Fatalf("%d resources, %d images", len(list.Resources), len(list.Images))
	}
	container := objects.One[appsv1.Deployment](t, objects.Manifest(t, list.Resources[0])).Spec.Template.Spec.Containers[0]
	if name, _, _ := strings.Cut(container.Image, ":"); name != list.Images[0].Name {
		t.Errorf("it sets the image %s, and the relay has %s", list.Images[0].Name, container.Image)
	}
}

// load does the same as `docker compose -f deploy/compose.yaml config`.
func load(t *testing.T, text string, environment types.Mapping) (*types.Project, error) {
	t.Helper()
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  objects.Path("deploy"),
		ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: []byte(text)}},
		Environment: environment,
	})
}

func TestTheComposeFileIsValid(t *testing.T) {
	text := objects.Read(t, "deploy/compose.yaml")
	project, err := load(t, text, nil)
	objects.Must(t, err)
	if names := project.ServiceNames(); !slices.Equal(names, []string{"postgres", "rabbitmq", "relay", "standby"}) {
		t.Errorf("services: %v", names)
	}
	for _, service := range project.Services {
		for name, value := range service.Environment {
			if value == nil {
				t.Errorf("%s: %s has no value", service.Name, name)
			}
		}
	}
}

// The ports are open only on this machine, and differ from the servers' usual ports.
func TestComposePortsDoNotCollide(t *testing.T) {
	project, err := load(t, objects.Read(t, "deploy/compose.yaml"), nil)
	objects.Must(t, err)
	taken := []string{"5432", "5671", "5672", "15671", "15672", "15692", "25672", "4369", "9464"}
	published := 0
	for _, service := range project.Services {
		for _, port := range service.Ports {
			published++
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open on %q", service.Name, port.Published, port.HostIP)
			}
			if slices.Contains(taken, port.Published) {
				t.Errorf("%s: port %s is the usual port of a server", service.Name, port.Published)
			}
			taken = append(taken, port.Published)
		}
	}
	if published != 4 {
		t.Errorf("%d ports", published)
	}
}

func TestComposePasswordsAndPortsCanBeSet(t *testing.T) {
	project, err := load(t, objects.Read(t, "deploy/compose.yaml"), types.Mapping{
		"POSTGRES_PASSWORD": "p1", "RABBITMQ_PASSWORD": "p2", "POSTGRES_PORT": "6001",
	})
	objects.Must(t, err)
	relay, err := project.GetService("relay")
	objects.Must(t, err)
	for name, password := range map[string]string{"CDC_RELAY_DATABASE_URL": ":p1@", "CDC_RELAY_AMQP_URL": ":p2@"} {
		if value := relay.Environment[name]; value == nil || !strings.Contains(*value, password) {
			t.Errorf("%s does not have the password", name)
		}
	}
	postgres, err := project.GetService("postgres")
	objects.Must(t, err)
	if postgres.Ports[0].Published != "6001" {
		t.Errorf("port %s", postgres.Ports[0].Published)
	}
}

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
