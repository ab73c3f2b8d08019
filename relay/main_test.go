package relay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/test/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func must(t testing.TB, err error) { t.Helper(); services.Must(t, err) }
