package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/cdc-relay/cdc-relay/test/deploy/objects"
)

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
	for _, mistake := range [][2]string{
		{"healthcheck:", "healthCheck:"},
		{"condition: service_healthy", "condition: healthy"},
		{"      rabbitmq:\n", "      rabbit:\n"},
	} {
		broken := strings.Replace(text, mistake[0], mistake[1], 1)
		if broken == text {
			t.Fatalf("there is no %q", mistake[0])
		}
		if _, err := load(t, broken, nil); err == nil {
			t.Errorf("%q is accepted", mistake[1])
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
