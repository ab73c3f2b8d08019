// Package helm renders and lints the chart with Helm's library.
package helm

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

func chartFolder() string { return objects.Path("deploy/helm/cdc-relay") }

// render returns what `helm template cdc-relay deploy/helm/cdc-relay` prints for these values, by file.
func render(values map[string]any) (map[string]string, error) {
	return renderAs("cdc-relay", values)
}

func renderAs(name string, values map[string]any) (map[string]string, error) {
	chart, err := loader.Load(chartFolder())
	if err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: name, Namespace: "shop", IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(chart, all)
}

func rendered(t *testing.T, values map[string]any) []any {
	t.Helper()
	files, err := render(values)
	objects.Must(t, err)
	return decoded(t, files)
}

func decoded(t *testing.T, files map[string]string) []any {
	t.Helper()
	var found []any
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") || strings.TrimSpace(files[name]) == "" {
			continue
		}
		part, err := objects.Decode(files[name])
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, files[name])
		}
		found = append(found, part...)
	}
	return found
}

func TestTheChartPassesTheLinter(t *testing.T) {
	linter := lint.AllWithKubeVersion(chartFolder(), nil, "shop", nil)
	for _, message := range linter.Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}

func TestTheChartRenders(t *testing.T) {
	found := rendered(t, nil)
	if len(found) != 6 {
		t.Errorf("%d objects", len(found))
	}
	objects.BelongTogether(t, found)

	found = rendered(t, map[string]any{
		"config":              map[string]any{"http-addr": "0.0.0.0:8080", "table": "sales.outbox"},
		"imagePullSecrets":    []any{map[string]any{"name": "registry"}},
		"nodeSelector":        map[string]any{"disk": "fast"},
		"tolerations":         []any{map[string]any{"key": "relay", "operator": "Exists"}},
		"setup":               map[string]any{"args": []any{"--table", "sales.outbox"}},
		"image":               map[string]any{"tag": "1.2.3"},
		"env":                 []any{map[string]any{"name": "CDC_RELAY_LOG_LEVEL", "value": "debug"}},
		"podDisruptionBudget": map[string]any{"enabled": true},
		"networkPolicy":       map[string]any{"from": []any{}, "ports": []any{6432, 5671}},
	})
	objects.BelongTogether(t, found)
	pod := objects.One[appsv1.Deployment](t, found).Spec.Template.Spec
	if pod.Containers[0].Image != "ghcr.io/cdc-relay/cdc-relay:1.2.3" || pod.ImagePullSecrets[0].Name != "registry" || pod.NodeSelector["disk"] != "fast" ||
		len(pod.Containers[0].Env) != 3 || pod.Containers[0].Env[2].Value != "debug" {
		t.Errorf("the values have no effect: %+v", pod)
	}
	job := objects.One[batchv1.Job](t, found).Spec.Template.Spec
	if !slices.Equal(job.Containers[0].Args, []string{"setup", "--table", "sales.outbox"}) || job.Tolerations[0].Key != "relay" {
		t.Errorf("the values have no effect on the Job: %+v", job)
	}

	off := map[string]any{"enabled": false}
	found = rendered(t, map[string]any{"setup": off, "networkPolicy": off, "podDisruptionBudget": off})
	if len(found) != 3 {
		t.Errorf("%d objects, want the ConfigMap, the Deployment and the Service", len(found))
	}
}

// A pod's name is at most 63 bytes, and Kubernetes adds up to 17 to the name of a Deployment.
func TestNamesAreValidForEveryRelease(t *testing.T) {
	long := strings.Repeat("release-", 6) + "ends" // 52 of the 53 bytes that Helm allows
	for _, test := range []struct {
		release, override, want string
	}{
		{"orders", "", "orders-cdc-relay"},
		{"orders-cdc-relay", "", "orders-cdc-relay"},
		{"orders", "outbox", "outbox"},
		{long, "", "release-release-release-release-release-release-en"},
		{strings.Repeat("a", 49) + "-b", "", strings.Repeat("a", 49)},
	} {
		files, err := renderAs(test.release, map[string]any{"fullnameOverride": test.override})
		objects.Must(t, err)
		found := decoded(t, files)
		objects.BelongTogether(t, found)
		deployment, job := objects.One[appsv1.Deployment](t, found), objects.One[batchv1.Job](t, found)
		if deployment.Name != test.want || job.Name != test.want+"-setup" {
			t.Errorf("release %s: the Deployment is %s, the Job %s", test.release, deployment.Name, job.Name)
		}
	}
}

func TestTheChartRejectsUnknownValues(t *testing.T) {
	for _, values := range []map[string]any{
		{"replicaCount": 3},
		{"replicas": "three"},
		{"secret": ""},
		{"networkPolicy": map[string]any{"port": 5432}},
		{"env": []any{map[string]any{"value": "without a name"}}},
		// The probes would fail, or the password would be in the ConfigMap.
		{"config": map[string]any{"http-addr": ""}},
		{"config": map[string]any{"http-addr": "127.0.0.1:9464"}},
		{"config": map[string]any{"database-url": "postgres://relay:secret@db/shop"}},
	} {
		if _, err := render(values); err == nil {
			t.Errorf("%v is accepted", values)
		}
	}
}

// The chart and the manifests describe the same relay, except for labels, the image, and features of Helm.
func TestTheChartEqualsTheManifests(t *testing.T) {
	found := rendered(t, nil)
	plain := append(objects.Manifest(t, "relay.yaml"), objects.Manifest(t, "setup.yaml")...)

	compare(t, "pod", podOf(&objects.One[appsv1.Deployment](t, found).Spec.Template.Spec), podOf(&objects.One[appsv1.Deployment](t, plain).Spec.Template.Spec))
	compare(t, "pod of the setup", podOf(&objects.One[batchv1.Job](t, found).Spec.Template.Spec), podOf(&objects.One[batchv1.Job](t, plain).Spec.Template.Spec))
	ours, theirs := objects.One[appsv1.Deployment](t, found).Spec, objects.One[appsv1.Deployment](t, plain).Spec
	compare(t, "replicas", ours.Replicas, theirs.Replicas)
	compare(t, "strategy", ours.Strategy, theirs.Strategy)
	compare(t, "Job", without(objects.One[batchv1.Job](t, found).Spec), without(objects.One[batchv1.Job](t, plain).Spec))
	compare(t, "ports", objects.One[corev1.Service](t, found).Spec.Ports, objects.One[corev1.Service](t, plain).Spec.Ports)
	compare(t, "ingress", objects.One[networkingv1.NetworkPolicy](t, found).Spec.Ingress, objects.One[networkingv1.NetworkPolicy](t, plain).Spec.Ingress)
	compare(t, "egress", objects.One[networkingv1.NetworkPolicy](t, found).Spec.Egress, objects.One[networkingv1.NetworkPolicy](t, plain).Spec.Egress)
	budget, plainBudget := objects.One[policyv1.PodDisruptionBudget](t, found).Spec, objects.One[policyv1.PodDisruptionBudget](t, plain).Spec
	compare(t, "maxUnavailable", budget.MaxUnavailable, plainBudget.MaxUnavailable)
	compare(t, "eviction", budget.UnhealthyPodEvictionPolicy, plainBudget.UnhealthyPodEvictionPolicy)
}

func compare(t *testing.T, what string, chart, plain any) {
	t.Helper()
	if !reflect.DeepEqual(chart, plain) {
		t.Errorf("%s of the chart:\n%+v\nand of the manifests:\n%+v", what, chart, plain)
	}
}

func podOf(pod *corev1.PodSpec) *corev1.PodSpec {
	pod = pod.DeepCopy()
	pod.Containers[0].Image, pod.Containers[0].ImagePullPolicy = "", ""
	if pod.Affinity != nil {
		for i := range pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i].PodAffinityTerm.LabelSelector = nil
		}
	}
	return pod
}

func without(job batchv1.JobSpec) batchv1.JobSpec {
	job.Template.Spec, job.Template.ObjectMeta = corev1.PodSpec{}, metav1.ObjectMeta{}
	return job
}

// docs/install.md has a release for each outbox, with these values.
func TestTheReleasesOfSeveralOutboxesRender(t *testing.T) {
	page, err := os.ReadFile(objects.Path("docs/install.md"))
	objects.Must(t, err)
	values := map[string]any{}
	for _, set := range regexp.MustCompile(`--set "(.*)"`).FindAllStringSubmatch(string(page), -1) {
		objects.Must(t, strvals.ParseInto(strings.ReplaceAll(set[1], "$outbox", "shop"), values))
	}
	files, err := renderAs("shop", values)
	objects.Must(t, err)
	found := decoded(t, files)
	pod, job := objects.One[appsv1.Deployment](t, found).Spec.Template.Spec, objects.One[batchv1.Job](t, found).Spec.Template.Spec
	if pod.Volumes[1].Secret.SecretName != "shop" || job.Volumes[0].Secret.SecretName != "shop-setup" ||
		!slices.Equal(job.Containers[0].Args, []string{"setup", "--relay-role", "cdc_relay", "--slot", "shop"}) ||
		!strings.Contains(objects.One[corev1.ConfigMap](t, found).Data["config.yaml"], "slot: shop") {
		t.Errorf("the values have no effect: %+v %+v", pod, job)
	}
}
