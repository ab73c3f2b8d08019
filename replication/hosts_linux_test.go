package replication

import (
	"net/url"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgdial"
	"github.com/cdc-relay/cdc-relay/test/await"
	"github.com/cdc-relay/cdc-relay/test/services"
)

// After a failover, the first host of the URL may not answer at all.
func TestAnUnreachableHostDoesNotHideTheNext(t *testing.T) {
	f := newFixture(t)
	u, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = services.NewDeaf(t).Addr() + "," + u.Host
	stream, _, err := Open(t.Context(), pgdial.AddressOf(u.String(), ""), f.names, await.Hang())
	if err != nil {
		t.Fatal(err)
	}
	stream.Close()
}
