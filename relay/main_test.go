package relay

import (
	"flag"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/services"
)

// rapid tries 100 cases of 30 steps by itself, which finds too little here: a race of
// a sweep with a reconnect takes thousands. Flags given by hand count more.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "4000", "rapid.steps": "100"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	services.Main(m)
}
