// Package objects reads the files of deploy/ and decodes Kubernetes objects strictly, for tests.
package objects

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Path returns the path of a file of the repository.
func Path(name string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "../../..", name)
}

// Read returns the text of a file of the repository.
func Read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(Path(name))
	Must(t, err)
	return string(text)
}

// Must ends the test after an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kinds are the types of objects that deploy/ may contain, by apiVersion and kind.
func kinds() map[string]reflect.Type {
	return map[string]reflect.Type{
		"v1 ConfigMap":                       reflect.TypeFor[corev1.ConfigMap](),
		"v1 Secret":                          reflect.TypeFor[corev1.Secret](),
		"v1 Service":                         reflect.TypeFor[corev1.Service](),
		"apps/v1 Deployment":                 reflect.TypeFor[appsv1.Deployment](),
		"batch/v1 Job":                       reflect.TypeFor[batchv1.Job](),
		"policy/v1 PodDisruptionBudget":      reflect.TypeFor[policyv1.PodDisruptionBudget](),
		"networking.k8s.io/v1 NetworkPolicy": reflect.TypeFor[networkingv1.NetworkPolicy](),
	}
}

// Decode returns the objects of a manifest. An unknown field, a field that stands twice and a wrong type are errors.
func Decode(manifest string) ([]any, error) {
	var objects []any
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			return nil, err
		}
		kind, known := kinds()[meta.APIVersion+" "+meta.Kind]
		if !known {
			return nil, fmt.Errorf("unknown kind %q of %q", meta.Kind, meta.APIVersion)
		}
		text, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", meta.Kind, err)
		}
		// As the server reads it: sigs.k8s.io/yaml would take startUpProbe for startupProbe.
		object := reflect.New(kind).Interface()
		faults, err := json.UnmarshalStrict(text, object)
		if err := errors.Join(append(faults, err)...); err != nil {
			return nil, fmt.Errorf("%s: %w", meta.Kind, err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// Manifest returns the objects of a file of deploy/kubernetes.
func Manifest(t *testing.T, name string) []any {
	t.Helper()
	objects, err := Decode(Read(t, "deploy/kubernetes/"+name))
	if err != nil {
		t.Fatalf("deploy/kubernetes/%s: %v", name, err)
	}
	return objects
}

// One returns the only object of a type.
func One[T any](t *testing.T, objects []any) *T {
	t.Helper()
	var found []*T
	for _, object := range objects {
		if typed, ok := object.(*T); ok {
			found = append(found, typed)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of the type %s", len(found), reflect.TypeFor[T]())
	}
	return found[0]
}

// selects says whether a selector takes pods with these labels.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// BelongTogether checks what no type can: that the objects of one relay name one another.
func BelongTogether(t *testing.T, objects []any) {
	t.Helper()
	deployment := One[appsv1.Deployment](t, objects)
	pod := deployment.Spec.Template
	service := One[corev1.Service](t, objects)
	policy := One[networkingv1.NetworkPolicy](t, objects)
	apart := pod.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0]
	for name, selector := range map[string]map[string]string{
		"Deployment":          deployment.Spec.Selector.MatchLabels,
		"Service":             service.Spec.Selector,
		"PodDisruptionBudget": One[policyv1.PodDisruptionBudget](t, objects).Spec.Selector.MatchLabels,
		"NetworkPolicy":       policy.Spec.PodSelector.MatchLabels,
		"anti-affinity":       apart.PodAffinityTerm.LabelSelector.MatchLabels,
	} {
		if !selects(selector, pod.Labels) {
			t.Errorf("%s selects %v, and the pods have %v", name, selector, pod.Labels)
		}
	}

	container := pod.Spec.Containers[0]
	port := container.Ports[0]
	for name, probe := range map[string]*corev1.Probe{
		"startup": container.StartupProbe, "liveness": container.LivenessProbe, "readiness": container.ReadinessProbe,
	} {
		if probe == nil || probe.HTTPGet.Port != intstr.FromString(port.Name) {
			t.Errorf("the %s probe does not ask port %q: %+v", name, port.Name, probe)
		}
	}
	if got := *policy.Spec.Ingress[0].Ports[0].Port; got != intstr.FromString(port.Name) {
		t.Errorf("the NetworkPolicy opens port %s", got.String())
	}
	config := One[corev1.ConfigMap](t, objects)
	var settings map[string]any
	Must(t, yaml.Unmarshal([]byte(config.Data["config.yaml"]), &settings))
	if address := fmt.Sprintf("0.0.0.0:%d", port.ContainerPort); settings["http-addr"] != address {
		t.Errorf("the relay listens on %v, and the container has port %d", settings["http-addr"], port.ContainerPort)
	}
	if pod.Annotations["prometheus.io/port"] != fmt.Sprint(port.ContainerPort) {
		t.Errorf("Prometheus reads the metrics from port %s", pod.Annotations["prometheus.io/port"])
	}
	if service.Spec.Ports[0].TargetPort != intstr.FromString(port.Name) {
		t.Errorf("the Service leads to port %v", service.Spec.Ports[0].TargetPort)
	}
	Mounted(t, &pod.Spec)
}

// Mounted checks that each mount of a pod is one of its volumes.
func Mounted(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	volumes := make(map[string]bool)
	for _, volume := range pod.Volumes {
		volumes[volume.Name] = true
	}
	for _, mount := range pod.Containers[0].VolumeMounts {
		if !volumes[mount.Name] {
			t.Errorf("there is no volume %s", mount.Name)
		}
		delete(volumes, mount.Name)
	}
	for name := range maps.Keys(volumes) {
		t.Errorf("volume %s is mounted nowhere", name)
	}
}
