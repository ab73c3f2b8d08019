// Package deploy checks the files of deploy/ with the code that reads them: the Go types of Kubernetes and Compose.
// Package helm checks the chart, and package release goreleaser's configuration: they take longer to compile. All are
// in a separate module, so that the relay does not depend on their dependencies.
package deploy

import (
	"errors"
	"strings"
	"testing"

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

func TestAMistakeInAManifestIsAnError(t *testing.T) {
	text := objects.Read(t, "deploy/kubernetes/relay.yaml")
	for _, mistake := range [][2]string{
		{"startupProbe:", "startUpProbe:"},
		{"replicas: 2", "replicas: two"},
		{"replicas: 2", "replicas: 2\n  replicas: 3"},
		{"apiVersion: policy/v1", "apiVersion: policy/v1beta1"},
	} {
		broken := strings.Replace(text, mistake[0], mistake[1], 1)
		if broken == text {
			t.Fatalf("there is no %q", mistake[0])
		}
		if _, err := objects.Decode(broken); err == nil {
			t.Errorf("%q is accepted", mistake[1])
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
